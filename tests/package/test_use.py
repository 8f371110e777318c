"""fastcomm.use(): what replaces torch's functions meanwhile, and that all of it is undone."""

from __future__ import annotations

import copy
import io
import random
import sys
import threading
import warnings
import zipfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import fastcomm
from fastcomm import _use, comm
from fastcomm.nn.parallel import _functions
from fastcomm.nn.parallel._division import say_where_it_runs

MODULES = [
    "torch.nn",
    "torch.cuda.comm",
    *(name for name in list(sys.modules) if "torch.nn.parallel" in name),
]


def _state() -> dict[tuple[str, str], Any]:
    return {
        (where, name): value
        for where in MODULES
        for name, value in vars(sys.modules[where]).items()
        if not isinstance(value, ModuleType) and not name.startswith("__")
    }


def test_everything_is_replaced_and_comes_back() -> None:
    before = _state()
    with fastcomm.use():
        inside = _state()
        assert torch.cuda.comm.broadcast_coalesced is comm.broadcast_coalesced
        assert torch.nn.parallel.comm.scatter is comm.scatter
        assert sys.modules["torch.nn.parallel._functions"].Broadcast is _functions.Broadcast
        x = torch.randn(4, 2)
        parts = torch.nn.parallel.scatter(x, ["cpu", "cpu"])
        replicas = torch.nn.parallel.replicate(nn.Identity(), ["cpu", "cpu"])
        outputs = torch.nn.parallel.parallel_apply(replicas, parts)
        assert torch.equal(torch.nn.parallel.gather(outputs, "cpu"), x)
        assert torch.equal(torch.nn.parallel.data_parallel(nn.Identity(), x, ["cpu", "cpu"]), x)
    after = _state()
    assert before.keys() == after.keys() == inside.keys()
    assert all(before[key] is after[key] for key in before)
    changed = {key for key in before if before[key] is not inside[key]}
    known = {(where, name) for where, names in _use._PLACES.items() for name, _ in names}
    assert changed == known


def test_it_is_nested_and_restored_after_an_exception() -> None:
    theirs = torch.nn.parallel.comm.gather
    with pytest.raises(KeyError), fastcomm.use():
        with fastcomm.use():
            pass
        assert torch.nn.parallel.comm.gather is comm.gather
        raise KeyError
    assert torch.nn.parallel.comm.gather is theirs


def test_it_is_in_effect_from_its_entry_and_as_a_decorator() -> None:
    theirs = torch.nn.parallel.comm.gather
    used = fastcomm.use()
    assert torch.nn.parallel.comm.gather is theirs
    for _ in range(2):
        with used:
            assert torch.nn.parallel.comm.gather is comm.gather
        assert torch.nn.parallel.comm.gather is theirs

    @fastcomm.use()
    def inside(x: int) -> tuple[int, bool]:
        return x, torch.nn.parallel.comm.gather is comm.gather

    assert torch.nn.parallel.comm.gather is theirs
    assert inside(3) == (3, True)
    assert inside.__name__ == "inside"
    assert torch.nn.parallel.comm.gather is theirs


def test_what_somebody_else_put_there_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = torch.nn.parallel.comm.gather
    with fastcomm.use():
        monkeypatch.setattr(torch.nn.parallel.comm, "gather", len)
    assert torch.nn.parallel.comm.gather is len
    torch.nn.parallel.comm.gather = theirs


def test_threads() -> None:
    theirs = torch.nn.parallel.comm.gather
    wrong = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(200):
            with fastcomm.use():
                if torch.nn.parallel.comm.gather is not comm.gather:
                    wrong.append(seed)
                if choose.random() < 0.3:
                    with fastcomm.use():
                        pass

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and torch.nn.parallel.comm.gather is theirs


class Counting(nn.Module):
    """Counts its replicas' calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.calls: list[int] = []  # replicas share it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(x))
        out: torch.Tensor = self.linear(x)
        return out


@pytest.mark.parametrize(
    "where", ["torch.nn", "torch.nn.parallel", "torch.nn.parallel.data_parallel"]
)
def test_the_name_of_data_parallel_is_ours_with_slots(where: str) -> None:
    module: Any = sys.modules[where]
    model, x = Counting(), torch.randn(5, 3)
    before = nn.DataParallel(nn.Linear(2, 2), device_ids=[])
    with fastcomm.use():
        wrapped = module.DataParallel(model, device_ids=["cpu", "cpu"])
        assert isinstance(wrapped, nn.DataParallel)
        assert isinstance(before, nn.DataParallel)  # wrapped earlier, by torch's
        assert not isinstance(model, nn.DataParallel)
        assert torch.equal(wrapped(x), model.linear(x))
        assert sorted(model.calls) == [2, 3]
    assert type(before) is nn.DataParallel  # torch's own again
    assert isinstance(wrapped, nn.DataParallel)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_without_slots_it_is_said_once_that_the_module_runs_as_it_is() -> None:
    ours = fastcomm.nn.parallel.DataParallel
    makers: list[Callable[[nn.Module], Any]] = [
        lambda model: nn.DataParallel(model),
        lambda model: ours(model),
        lambda model: ours(model, device_ids=[0, 1]),
        lambda model: ours(model, loss_fn=nn.MSELoss()),
    ]
    for make in makers:
        say_where_it_runs.cache_clear()
        with fastcomm.use(), pytest.warns(RuntimeWarning) as told:
            for _ in range(2):
                make(nn.Linear(2, 2))
        assert len(told) == 1 and 'device_ids=["cpu", "cpu"]' in str(told[0].message)
        assert str(told[0].filename) == __file__
    say_where_it_runs.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(nn.Linear(2, 2), device_ids=[])
        ours(nn.Linear(2, 2), device_ids=["cpu", "cpu"])
    with pytest.raises(RuntimeError, match="for replicas on the CPU"):
        fastcomm.nn.parallel.data_parallel(nn.Linear(2, 2), torch.ones(2, 2))


def _saved(model: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(model, stream)
    return stream.getvalue()


def _loaded(saved: bytes) -> Any:
    return torch.load(io.BytesIO(saved), weights_only=False)


def test_whole_models_cross_the_border_of_use() -> None:
    x, theirs = torch.randn(4, 3), nn.DataParallel(nn.Linear(3, 2), device_ids=[])
    wanted, plain = theirs(x), _saved(theirs)
    with fastcomm.use():
        inside = _loaded(plain)
        slots = nn.DataParallel(copy.deepcopy(theirs.module), device_ids=["cpu", "cpu"])
        lossy = _use.DataParallel(nn.Linear(3, 2), ["cpu"], loss_fn=nn.MSELoss())
        assert type(inside) is _use.DataParallel
        for model in (inside, _loaded(_saved(theirs)), copy.deepcopy(theirs), copy.deepcopy(slots)):
            assert isinstance(model, nn.DataParallel) and issubclass(type(model), nn.DataParallel)
            assert torch.equal(model(x), wanted)
        files = [_saved(inside), _saved(slots), _saved(theirs)]
        kept = [_loaded(file) for file in files]
        assert kept[1].device_ids == ["cpu", "cpu"]
    files += [_saved(inside), _saved(slots)]
    for file in files:
        model = _loaded(file)
        assert type(model) is nn.DataParallel and torch.equal(model(x), wanted)
        with zipfile.ZipFile(io.BytesIO(file)) as parts:
            pickled = [parts.read(n) for n in parts.namelist() if n.endswith("data.pkl")]
        assert len(pickled) == 1 and b"fastcomm" not in pickled[0]
    for model in (slots, *kept, copy.copy(slots), copy.deepcopy(slots)):
        assert isinstance(model, nn.DataParallel) and torch.equal(model(x), wanted)
    assert _loaded(_saved(lossy)).loss_fn is not None
    assert type(copy.deepcopy(theirs)) is nn.DataParallel


def test_a_class_derived_inside_has_only_its_own_instances() -> None:
    with fastcomm.use():
        mine: Any = type("Mine", (nn.DataParallel,), {})
        assert isinstance(mine(nn.Linear(2, 2), []), mine)
        assert not isinstance(nn.DataParallel(nn.Linear(2, 2), []), mine)
        assert issubclass(mine, nn.DataParallel) and not issubclass(nn.DataParallel, mine)
