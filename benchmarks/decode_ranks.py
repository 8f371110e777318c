"""The work of each rank of ``decode.py``: ways to sum, their comparison, and their times."""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from decode_model import CACHE, Model, Reduce, Run, Shape, run_layers
from peers.deepspeed import open_deepspeed
from peers.floor import Floor

from fastcomm._distributed.operators import OPERATORS
from fastcomm._measure.cases import Case
from fastcomm._measure.contenders import first_line
from fastcomm._measure.objects import all_gather_object
from fastcomm._measure.stats import summarize
from fastcomm._measure.timing import Call, Timer, max_over_ranks, measure, time_batch

OPERATOR, C10D, DEEPSPEED, GLOO = "fastcomm, operator", "fastcomm, c10d", "DeepSpeed", "Gloo"
NONE, FLOOR = "none", "floor"
EAGER, COMPILED = "eager", "compiled"

_CHECKED = 8  # tokens
_TOLERANCE = 0.05  # of logits, relative to their norm: the type has 8 bits
_PILOT = 8  # tokens: the first ones after a pause are slow
_ALONE_S = 2.0

Row = dict[str, Any]
Way = tuple[str, str]
"""What sums over the ranks, and whether the code around it is compiled."""


@torch.library.register_fake("fastcomm::_nothing_")
def _(tensor: torch.Tensor, group_name: str, op: str = "sum") -> None:
    return None


class Decoder:
    """A sequence of tokens, of which each call makes the next one, from the one before."""

    def __init__(self, model: Model, reduce: Reduce, run: Run) -> None:
        self._model, self._reduce, self._run = model, reduce, run
        self.restart()

    def restart(self) -> None:
        """Begin anew, with an empty cache."""
        self._position = 0
        self._token = torch.zeros(1, dtype=torch.int64)

    @torch.inference_mode()
    def __call__(self) -> torch.Tensor:
        position, self._position = self._position, (self._position + 1) % CACHE
        logits = self._model.logits(self._token, position, self._reduce, self._run)
        self._token = logits.argmax(-1)
        return logits

    def first_logits(self, tokens: Sequence[int] = ()) -> torch.Tensor:
        """Return the logits of a new sequence, a row for each token, which may be given."""
        self.restart()
        rows = []
        for number in range(_CHECKED):
            rows.append(self())
            if tokens:
                self._token = torch.tensor([tokens[number]])
        return torch.cat(rows)


class _Tokens(Timer):
    """Times of tokens: each batch begins a sequence anew."""

    def pilot(self) -> float:
        dist.barrier(group=self.control)
        return statistics.median(max_over_ranks(time_batch(self.call, _PILOT), self.control))

    def batch(self, samples: int) -> list[int]:
        cast(Decoder, self.call).restart()
        return super().batch(samples)


def measure_on_rank(
    shape: Shape, kinds: Sequence[str], rounds: int, tokens: int, budget_s: float
) -> list[Row]:
    """Return a row for each way, of so many tokens a round, or of as many as the budget allows.

    The default group is of fastcomm.
    """
    control = dist.new_group(backend="gloo")
    _say(f"hidden {shape.hidden}: making weights")
    model = Model(shape, dist.get_rank(), dist.get_world_size())
    reduces, left_out = _ways(kinds, control)
    decoders = {}
    for way, reduce in reduces.items():
        _say(f"hidden {shape.hidden}: {', '.join(way)}")
        decoder = Decoder(model, reduce, _run(way))
        why = _failure(decoder, control)
        if why:
            left_out[way] = why
        else:
            decoders[way] = decoder
    errors = _check(decoders, shape, control)
    _say(f"hidden {shape.hidden}: measuring")
    calls = list(decoders.values())
    samples = measure(calls, control, budget_s, rounds, _Tokens, rounds * tokens, warm_up=1)
    rows = [
        {"over": over, "kind": kind, **_times(each.batches), **errors.get((over, kind), {})}
        for (over, kind), each in zip(decoders, samples, strict=True)
    ]
    rows += _alone(rows, reduces, shape, left_out, control)
    rows += [{"over": way[0], "kind": way[1], "left_out": why} for way, why in left_out.items()]
    return rows


def _say(what: str) -> None:
    if dist.get_rank() == 0:
        print(what, file=sys.stderr, flush=True)


def _ways(
    kinds: Sequence[str], control: dist.ProcessGroup
) -> tuple[dict[Way, Reduce], dict[Way, str]]:
    """Return what sums in each way, and why others are left out.

    What sends nothing is an operator, too: without one, other code would be compiled.
    """
    group = dist.group.WORLD
    assert group is not None
    name: str = group.group_name

    def operator(tensor: torch.Tensor) -> torch.Tensor:
        OPERATORS.all_reduce_(tensor, name)
        return tensor

    def c10d(group: dist.ProcessGroup, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor, group=group)
        return tensor

    def functional_c10d(tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = functional.all_reduce(tensor, "sum", name)
        return result

    def deepspeed(tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.deepspeed.inference_all_reduce_(tensor)
        return result

    def none(tensor: torch.Tensor) -> torch.Tensor:
        OPERATORS._nothing_(tensor, name)
        return tensor

    ways: dict[Way, Reduce] = {
        (OPERATOR, EAGER): operator,
        (OPERATOR, COMPILED): operator,
        (C10D, EAGER): functools.partial(c10d, group),
        (C10D, COMPILED): functional_c10d,
        (DEEPSPEED, EAGER): deepspeed,
        (DEEPSPEED, COMPILED): deepspeed,
        (GLOO, EAGER): functools.partial(c10d, control),
        (NONE, EAGER): none,
        (NONE, COMPILED): none,
    }
    failed = open_deepspeed(control)
    asked = {way: reduce for way, reduce in ways.items() if way[1] in kinds}
    left_out = {way: failed for way in asked if failed and way[0] == DEEPSPEED}
    return {way: asked[way] for way in asked if way not in left_out}, left_out


def _run(way: Way) -> Run:
    if way[1] == EAGER:
        return run_layers
    run: Run = torch.compile(run_layers, fullgraph=True, dynamic=False)
    return run


def _failure(decoder: Decoder, control: dist.ProcessGroup) -> str:
    """Make tokens, which compiles; returns why that failed on a rank, if it did."""
    why = ""
    try:
        decoder()
    except Exception as error:
        why = first_line(error)
    return next(filter(None, all_gather_object(why, control)), "")


def _check(
    decoders: dict[Way, Decoder], shape: Shape, control: dist.ProcessGroup
) -> dict[Way, Row]:
    """Compare logits of all ways, bit by bit where the same code is around the sums.

    With two ranks every sum is rounded once, whoever computes it. All are compared to the logits of
    one process with the whole model, too, as far as rounding of partial sums allows.

    Raises:
        RuntimeError: they differ.
    """
    found = {way: each.first_logits() for way, each in decoders.items() if way[0] != NONE}
    tokens = {way: logits.argmax(-1).tolist() for way, logits in found.items()}
    errors: dict[Way, Row] = {}
    if dist.get_rank(control) == 0:
        whole = Decoder(Model(shape, 0, 1), lambda tensor: tensor, run_layers)
        for way, logits in found.items():
            alone = whole.first_logits(tokens[way])
            error = float((logits - alone).norm() / alone.norm())
            errors[way] = {"logits_error": round(error, 4)}
    for way, logits in found.items():
        first = next(each for each in found if each[1] == way[1])
        if not torch.equal(logits, found[first]):
            raise RuntimeError(f"logits over {way} are not those over {first}")
        if len({str(each) for each in all_gather_object(tokens[way], control)}) != 1:
            raise RuntimeError(f"ranks make different tokens over {way}")
        if errors.get(way, {}).get("logits_error", 0) > _TOLERANCE:
            raise RuntimeError(f"logits over {way} are not those of one process: {errors[way]}")
    return errors


def _times(batches: Sequence[Sequence[int]]) -> Row:
    summary = summarize([time_ns for batch in batches for time_ns in batch])
    return {
        "samples": summary.count,
        "tokens_per_s": round(1e6 / summary.median_us, 1),
        "median_us": round(summary.median_us, 1),
        "p99_us": round(summary.p99_us, 1),
        "batch_median_us": [round(statistics.median(batch) / 1e3, 1) for batch in batches],
    }


def _alone(
    rows: list[Row],
    reduces: dict[Way, Reduce],
    shape: Shape,
    left_out: dict[Way, str],
    control: dist.ProcessGroup,
) -> list[Row]:
    """Add to rows of plain code what a sum takes without a model; returns a row of the floor.

    The floor sums float32: half as many numbers, which are as many bytes.
    """
    buffer = torch.zeros(1, shape.hidden, dtype=torch.bfloat16)
    plain = [row for row in rows if row["kind"] == EAGER]
    calls: list[Call] = [
        functools.partial(reduces[row["over"], row["kind"]], buffer) for row in plain
    ]
    bare: list[Row] = []
    floor = Floor(FLOOR, control)
    if floor.failed:
        left_out[FLOOR, EAGER] = floor.failed
    else:
        numbers = torch.zeros(shape.hidden // 2)
        case: Any = SimpleNamespace(
            name="all_reduce", dtype=numbers.dtype, buffer=numbers, numel=numbers.numel()
        )
        calls.append(floor.call_of(cast(Case, case)))
        bare.append({"over": FLOOR, "kind": EAGER})
    samples = measure(calls, control, _ALONE_S) if calls else []
    for row, each in zip(plain + bare, samples, strict=True):
        row["alone_us"] = round(summarize(each.times_ns).median_us, 2)
    return bare
