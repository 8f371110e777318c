"""Tensors, operators and autograd on the simulated devices, in processes of their own."""

from __future__ import annotations

import copy
import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.patience import ENDS
from support.ranks import World, run_outcomes, run_ranks
from torch import nn

import sim

pytestmark = pytest.mark.usefixtures("simulated")

TESTS = Path(__file__).resolve().parents[1]


def _devices(_: World) -> None:
    """Devices have indices."""
    sim.load()
    assert sim.load() is sim.load()
    assert torch.sim.is_available() and torch.sim.device_count() == 8
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.ones(2, device="sim").device == torch.device("sim:0")
    torch.sim.set_device(3)
    assert torch.ones(2, device="sim").device == torch.device("sim:3")
    with torch.sim.device(5):
        assert torch.ones(2).sim().device == torch.device("sim:5")
    assert torch.sim.current_device() == 3
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.sim.set_device(8)
    moved = torch.arange(4, device="sim:1").to("sim:6")
    assert moved.device == torch.device("sim:6") and moved.tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="sim"):
        _ = torch.ones(2, device="sim:1") + torch.ones(2)


def _values(_: World) -> None:
    """Values, views and arithmetic."""
    sim.load()
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        host = torch.arange(24).remainder(5).to(dtype).view(4, 6)
        there = host.to("sim:2")
        assert there.dtype == dtype and torch.equal(there.cpu(), host), dtype
        views: list[Callable[[torch.Tensor], torch.Tensor]] = [
            lambda t: t.t(),
            lambda t: t[1:, ::2],
            lambda t: t[2],
            lambda t: t.view(2, 12),
            lambda t: t.reshape(-1)[3:],
            lambda t: t.expand(3, 4, 6),
            lambda t: t.unfold(1, 3, 2),
            lambda t: t[:0],
        ]
        for view in views:
            here, away = view(host), view(there)
            assert away.stride() == here.stride()
            assert away.untyped_storage().data_ptr() == there.untyped_storage().data_ptr()
            assert torch.equal(away.cpu(), here), dtype
        there.t()[1:3] = 1
        host.t()[1:3] = 1
        assert torch.equal(there.cpu(), host), dtype
    numbers = torch.arange(6.0, device="sim")
    assert (numbers * 2 + 1).tolist() == [1, 3, 5, 7, 9, 11]
    assert numbers.sum().item() == 15 and numbers[numbers > 2].tolist() == [3, 4, 5]
    out = torch.empty(0, device="sim")
    torch.add(numbers, 1, out=out)
    assert out.tolist() == [1, 2, 3, 4, 5, 6]
    torch.add(numbers, 1, out=numbers)
    assert numbers.tolist() == [1, 2, 3, 4, 5, 6]
    numbers -= 1
    # Its kernel resizes what it writes to on the way.
    assert nn.functional.mse_loss(numbers, numbers + 2).item() == 4
    turned = torch.view_as_complex(numbers.view(3, 2)).conj()
    assert turned.is_conj() and turned.cpu().tolist() == [0 - 1j, 2 - 3j, 4 - 5j]
    assert torch.view_as_real(torch.view_as_complex(numbers.view(3, 2))).data_ptr() == (
        numbers.data_ptr()
    )


def _numbers(_: World) -> None:
    """Generators of devices draw the CPU's numbers."""
    sim.load()
    here, there = (torch.Generator(device).manual_seed(7) for device in ("cpu", "sim:2"))
    for _draw in range(2):
        drawn = torch.empty(50, device="sim:2").normal_(generator=there)
        assert torch.equal(drawn.cpu(), torch.empty(50).normal_(generator=here))


def _memory(_: World) -> None:
    """Storages, pinned memory and streams."""
    sim.load()
    tensor = torch.arange(4.0, device="sim:1")
    storage = tensor.untyped_storage()
    storage.resize_(64)
    assert storage.nbytes() == 64 and tensor.tolist() == [0, 1, 2, 3]
    storage.resize_(0)
    assert storage.nbytes() == 0
    grown = torch.empty(0, device="sim:1").resize_(2, 3).fill_(7)
    assert grown.device == torch.device("sim:1") and grown.sum() == 42
    other = torch.empty(0, device="sim:1").set_(grown)
    assert other.data_ptr() == grown.data_ptr() and other.shape == (2, 3)
    assert torch.empty(0, device="sim:1").set_(grown.untyped_storage(), 2, (2,), (1,)).tolist() == [
        7,
        7,
    ]
    assert grown.set_().numel() == 0 and grown.device == torch.device("sim:1")
    pinned = torch.ones(5).pin_memory()
    assert pinned.is_pinned() and pinned[2:].is_pinned() and pinned.device.type == "cpu"
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.ones(5).is_pinned() and not torch.ones(5, device="sim").is_pinned()
    assert torch.empty(5, device="sim").copy_(pinned, non_blocking=True).sum() == 5
    stream = torch.sim.Stream(2)
    before = torch.sim.current_stream(2)
    with torch.sim.stream(stream):
        assert torch.sim.current_stream(2) == stream != before
        event = torch.sim.Event()
        event.record()
        event.synchronize()
        assert event.query()
    assert torch.sim.current_stream(2) == before


def _trespassing(_: World) -> None:
    sim.load()
    ctypes.string_at(torch.ones(4, device="sim").data_ptr(), 1)


def test_the_host_does_not_reach_the_memory_of_a_device() -> None:
    (outcome,) = run_outcomes(1, _trespassing)
    assert outcome.exitcode == -signal.SIGSEGV


def _much_memory(_: World) -> None:
    """Memory is used again."""
    sim.load()
    for _step in range(40):  # 40 GiB, of which one is held at a time
        assert torch.empty(2**28, device="sim")[-1:].fill_(3).item() == 3
    kept = [torch.full((each,), each, device="sim") for each in range(1, 300)]
    assert all(tensor.eq(each).all() for each, tensor in enumerate(kept, 1))
    with pytest.raises(torch.OutOfMemoryError, match="sim out of memory"):
        torch.empty(2**40, device="sim")


def _sleeping(_: World) -> None:
    """A stream can be kept busy."""
    sim.load()
    side = torch.sim.Stream(1)
    event = torch.sim.Event()
    began = time.monotonic()
    with torch.sim.stream(side):
        torch.sim.sleep(50_000)
        event.record()
    torch.ones(1, device="sim:1").item()  # another stream
    event.synchronize()
    assert time.monotonic() - began >= 0.05


class _Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).relu().flatten(1)
        return nn.functional.dropout(self.head(x), 0.3)


def _training(_: World) -> None:
    """Training gives the bits of the CPU."""
    sim.load()
    torch.manual_seed(1)
    here = _Small()
    there = copy.deepcopy(here).to("sim:4")
    for model, device in ((here, "cpu"), (there, "sim:4")):
        optimizer = torch.optim.Adam(model.parameters())
        torch.manual_seed(2)
        for _step in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(6, 3, 8, 8).to(device)).square().mean()
            loss.backward()
            optimizer.step()
    for name, value in there.state_dict().items():
        assert torch.equal(value.cpu(), here.state_dict()[name]), name


class _Reader(nn.Module):
    """Modules with their own operators on devices, or other forms there than torch's Meta says."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.lstm = nn.LSTM(3, 4, num_layers=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lstm(self.norm(x))[0]
        return out


def _reading(_: World) -> None:
    """LSTMs, and batch norms outside of training."""
    sim.load()
    torch.manual_seed(1)
    here = _Reader().double()
    there = copy.deepcopy(here).to("sim:3")
    x = torch.randn(7, 5, 3, dtype=torch.float64)
    for training in (True, False):
        outputs = []
        for model, device in ((here, "cpu"), (there, "sim:3")):
            model.zero_grad()
            outputs.append(model.train(training)(x.to(device)))
            outputs[-1].square().sum().backward()
        torch.testing.assert_close(outputs[1].cpu(), outputs[0])  # sums have another order there
        for (name, a), b in zip(there.named_parameters(), here.parameters(), strict=True):
            assert a.grad is not None and b.grad is not None
            torch.testing.assert_close(a.grad.cpu(), b.grad, msg=name)


@pytest.mark.parametrize(
    "use",
    [_devices, _values, _numbers, _memory, _much_memory, _sleeping, _training, _reading],
    ids=lambda use: use.__name__[1:],
)
def test_a_device(use: Callable[[World], None]) -> None:
    run_ranks(1, use)


def test_a_script_may_end_with_backward() -> None:
    script = (
        "import torch, sim; sim.load(); w = torch.ones(9, device='sim', requires_grad=True); "
        "torch.nn.functional.linear(w, w.expand(9, 9)).sum().backward()"
    )
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", script], cwd=TESTS, check=True, timeout=ENDS, capture_output=True
        )


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    assert "no-such-compiler" in sim.missing()


def test_what_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "module.cpp").write_text("int broken(")
    monkeypatch.setattr(sim.build, "ROOT", tmp_path)
    monkeypatch.setattr(sim.build, "units", lambda: {"bindings": [sources / "module.cpp"]})
    with pytest.raises(RuntimeError, match="broken"):
        sim.build.library()
    (sources / "module.cpp").write_text("")
    built = sim.build.library()
    changed = built.stat().st_mtime_ns
    assert sim.build.library() == built and built.stat().st_mtime_ns == changed
    (sources / "module.cpp").write_text("int one;")
    assert sim.build.library().stat().st_mtime_ns > changed
