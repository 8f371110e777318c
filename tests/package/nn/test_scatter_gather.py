"""Nested structures cut for devices and joined again."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.places import Place, examples

import fastcomm
from fastcomm.nn.parallel.scatter_gather import gather, quiet_gather, scatter, scatter_kwargs

TWO = ["cpu", "cpu"]
Pair = collections.namedtuple("Pair", ["a", "b"])


class Typed(NamedTuple):
    a: torch.Tensor
    b: int


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    name: str
    inner: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    count: int = dataclasses.field(init=False, default=3)


@dataclasses.dataclass
class ModelOutput(collections.OrderedDict):
    """As in transformers: a dataclass that is a dict of what is not None."""

    logits: Any = None
    loss: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


def test_scatter_builds_the_structure_for_each_device(place: Place) -> None:
    two = place.devices(2)
    x = torch.arange(8.0).view(4, 2)
    value = {
        "tuple": (x, 1),
        "list": [x, "text"],
        "named": Pair(x, x + 1),
        "typed": Typed(x, 3),
        "record": Record(x, "n", {"y": x}),
        "frozen": Frozen(x),
        "none": None,
        "empty": ([], (), {}),
        "default": collections.defaultdict(list, k=x),
    }
    parts = scatter(value, two)
    assert isinstance(parts, list) and len(parts) == 2
    for part, wanted, device in zip(parts, x.chunk(2), two, strict=True):
        chunk = wanted.to(device)
        assert list(part) == list(value)
        assert torch.equal(part["tuple"][0], chunk) and part["tuple"][1] == 1
        assert torch.equal(part["list"][0], chunk) and part["list"][1] == "text"
        assert type(part["named"]) is Pair and torch.equal(part["named"].b, chunk + 1)
        assert type(part["typed"]) is Typed and part["typed"].b == 3
        assert type(part["record"]) is Record and part["record"].name == "n"
        assert torch.equal(part["record"].inner["y"], chunk)
        assert torch.equal(part["frozen"].x, chunk) and part["frozen"].count == 3
        assert part["none"] is None and part["empty"] == ([], (), {})
        assert part["default"].default_factory is list
        assert torch.equal(part["default"]["k"], chunk)
    assert isinstance(scatter(x, two), tuple)
    shared = object()
    assert all(part is shared for part in scatter(shared, two))


def test_scatter_by_given_sizes(place: Place) -> None:
    value = {"x": torch.arange(5), "y": torch.arange(10).view(5, 2)}
    parts = scatter(value, place.devices(2), 0, [1, 4])
    assert [len(part["x"]) for part in parts] == [1, 4]
    assert [tuple(part["y"].shape) for part in parts] == [(1, 2), (4, 2)]
    assert [part["y"].device for part in parts] == place.devices(2)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_short_batches_bring_up_no_replica_without_data(place: Place, rows: int) -> None:
    x, four = torch.arange(rows), place.devices(4)
    for inputs, kwargs in (
        ((x,), {}),
        ((x,), {"flag": True}),
        ((), {"x": x}),
        ((1, "text"), {"x": x}),
        ((x,), {"x": x, "flag": 1}),
    ):
        positions, keywords = scatter_kwargs(inputs, kwargs, four)
        count = len(x.chunk(4))
        assert len(positions) == len(keywords) == count
        for part, keyword, chunk in zip(positions, keywords, x.chunk(4), strict=True):
            assert len(part) == len(inputs) and keyword.keys() == kwargs.keys()
            for given_value, got in zip(inputs, part, strict=True):
                assert torch.equal(got.cpu(), chunk) if given_value is x else got == given_value
            if "x" in keyword:
                assert torch.equal(keyword["x"].cpu(), chunk)
    assert scatter_kwargs((), None, TWO) == ((), ())
    assert scatter_kwargs((), {}, TWO) == ((), ())
    assert scatter_kwargs((1,), {"a": 2}, TWO) == (((1,), (1,)), ({"a": 2}, {"a": 2}))


@pytest.mark.parametrize("rows", [(8, 5), (8, 1), (1, 8), (4, 3)])
def test_tensors_that_would_lose_rows(rows: tuple[int, int]) -> None:
    a, b = map(torch.ones, rows)
    four = ["cpu"] * 4
    match = f"of {rows[0]} and of {rows[1]} along dimension 0 are cut into"
    for inputs, kwargs in (
        ((a, b), {}),
        ((a,), {"b": b}),
        ((), {"a": a, "b": b}),
        (({"a": a, "b": [b]},), None),
        ((Record(a, "n", {"y": b}),), {}),
        ((torch.tensor(1.0), Pair(a, b)), {}),
    ):
        with pytest.raises(ValueError, match=match):
            scatter_kwargs(inputs, kwargs, four)
        with pytest.raises(ValueError, match=match):
            scatter((inputs, kwargs), four)


@pytest.mark.parametrize("rows", [(8, 7), (8, 4), (0, 8)])
def test_tensors_of_other_lengths_lose_no_rows(rows: tuple[int, int]) -> None:
    a, b = (torch.arange(count) for count in rows)
    positions, keywords = scatter_kwargs((a,), {"b": b}, TWO)
    assert torch.equal(torch.cat([part[0] for part in positions]), a)
    assert torch.equal(torch.cat([part["b"] for part in keywords]), b)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.complex64, torch.int64, torch.bool], ids=str
)
def test_0_dim_tensors_go_whole_to_every_device(place: Place, dtype: torch.dtype) -> None:
    two, x = place.devices(2), torch.arange(4.0).view(2, 2)
    derived = dtype.is_floating_point or dtype.is_complex
    scale = torch.tensor(True, dtype=dtype, requires_grad=derived)
    value = (scale, {"x": x, "scale": scale}, [scale], Pair(scale, x), Record(scale, "n"))
    parts = scatter(value, two)
    assert len(parts) == 2
    found = []
    for (alone, keyed, listed, named, record), device in zip(parts, two, strict=True):
        scales = [alone, keyed["scale"], *listed, named.a, record.x]
        assert all(s.device == device and s.dtype == dtype and s.dim() == 0 for s in scales)
        assert all(s == scale.item() for s in scales) and len(named.b) == 1
        found += scales
    if derived:
        torch.stack([(3 * s).to("cpu") for s in found]).sum().real.backward()
        assert scale.grad == 30
    with fastcomm.use():
        assert len(torch.nn.parallel.scatter(scale, two)) == 2
    assert len(scatter_kwargs((scale,), {"a": scale}, two)[1]) == 1


def test_a_dataclass_without_tensors_is_handed_on_as_it_is() -> None:
    @dataclasses.dataclass
    class Settings:
        name: str
        later: int = dataclasses.field(init=False)

    settings_given = Settings("n")
    assert all(part is settings_given for part in scatter(settings_given, TWO))


def test_gather_joins_the_structures(place: Place) -> None:
    one, two, target = place.devices(3)
    a, b = torch.randn(2, 3, device=one), torch.randn(1, 3, device=two)
    both = torch.cat([a.cpu(), b.cpu()]).to(target)
    outputs = [
        {
            "tuple": (v, [v]),
            "named": Pair(v, {"k": v}),
            "record": Record(v, "n"),
            "model": ModelOutput(logits=v),
            "none": None,
        }
        for v in (a, b)
    ]
    joined = gather(outputs, target)
    assert torch.equal(joined["tuple"][0], both) and isinstance(joined["tuple"][1], list)
    assert type(joined["named"]) is Pair and torch.equal(joined["named"].b["k"], both)
    assert type(joined["record"]) is Record and torch.equal(joined["record"].x, both)
    assert vars(joined["record"])["name"] == ["n", "n"]
    assert type(joined["model"]) is ModelOutput and list(joined["model"]) == ["logits"]
    assert torch.equal(joined["model"].logits, both) and joined["model"].loss is None
    assert joined["none"] is None
    with pytest.raises(ValueError, match="same number of keys"):
        gather([{"a": a}, {"a": b, "b": b}], target)
    with pytest.raises(ValueError, match="zip"):
        gather([(a,), (a, b)], target)


def _result(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(
    "outputs",
    [
        [None, None],
        [None, 1],
        [(None, None), (None, None)],
        [{"a": None}, {"a": None}],
        [Pair(None, [None]), Pair(None, [None])],
        [[], []],
        [{}, {}],
        [1, 2],
        [True, False],
        [1.5, 2.5],
        [1 + 1j, 2j],
        [b"ab", b"cd"],
        [object(), object()],
        [len, len],
        [int, int],
        [[1], [2]],
        [{"a": (None, 1)}, {"a": (None, 2)}],
        [Pair(1, None), Pair(2, None)],
        [torch.Size([2]), torch.Size([3])],
        [(), (1,)],
    ],
    ids=lambda outputs: f"{type(outputs).__name__} of {type(outputs[0]).__name__}",
)
def test_outputs_without_tensors_are_gathered_as_by_torch(outputs: Any) -> None:
    """Equal results, or errors of the same type."""
    theirs = _result(lambda: torch.nn.parallel.gather(outputs, "cpu"))
    ours = _result(lambda: gather(outputs, "cpu"))
    assert type(ours) is type(theirs) and ours == theirs
    assert _result(lambda: quiet_gather(outputs, "cpu")) == ours


@pytest.mark.parametrize(
    "outputs", [["ab", "cd"], [("a", None), ("b", None)], [{"a": "x"}] * 2], ids=str
)
def test_strings_are_not_gathered(outputs: Any) -> None:
    """torch returns the text of an iterator in their place."""
    assert "<map object at " in str(torch.nn.parallel.gather(outputs, "cpu"))
    with pytest.raises(TypeError, match="an output of type str cannot be gathered"):
        gather(outputs, "cpu")


def test_scalars(place: Place) -> None:
    pairs = zip((1.0, 2.0), place.devices(2), strict=True)
    scalars = [torch.tensor(value, device=device, requires_grad=True) for value, device in pairs]
    with pytest.warns(UserWarning, match="all input tensors were scalars"):
        assert gather(scalars, place.first).tolist() == [1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joined = quiet_gather(scalars, place.first, 1)
    assert joined.tolist() == [1, 2]
    joined.backward(torch.tensor([3.0, 4.0]).to(place.first))
    assert [scalar.grad for scalar in scalars] == [3.0, 4.0]


LEAVES = st.one_of(st.integers(1, 6).map(lambda n: torch.arange(12 * n).view(12, n)), st.none())
STRUCTURES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=8,
)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and all(map(_same, a, b)) and len(a) == len(b)
    return bool(a is b is None)


@examples(150)
@given(value=STRUCTURES, count=st.sampled_from([1, 2, 3, 4, 6]))
def test_what_is_cut_and_joined_is_the_same(place: Place, value: Any, count: int) -> None:
    parts = scatter(value, place.devices(count))
    assert len(parts) == count
    assert _same(value, gather(parts, "cpu"))
