"""Random collectives over fastcomm: against plain torch, and beside Gloo.

Everything about a trial follows from its number. One that fails is played again, and alone, by::

    PYTHONPATH=tests python -m trials.collectives --first 17 --count 1
"""

from __future__ import annotations

import contextlib
import re
import traceback
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from trials.case import Case, Spec
from trials.launch import GROUPS, Played, Trials, command
from trials.operations import draw_spec, make_case

FUTURE = "the future holds"


@dataclass
class Ended:
    """How a call ended on one rank: an error, wrong results, what its future holds."""

    error: str = ""
    wrong: str = ""
    shown: str = ""


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return type(value).__name__


def _works(returned: Any) -> list[Any]:
    if returned is None:
        return []
    return list(returned) if isinstance(returned, list) else [returned]


def _play(spec: Spec, rank: int, group: dist.ProcessGroup) -> Ended:
    """Play a case on a group, and wait for it."""
    case: Case = make_case(spec, rank, group)
    grad = torch.no_grad() if spec.option % 4 else contextlib.nullcontext()
    try:
        with grad:
            works = _works(case.call())
            for work in works:
                work.wait()
    except Exception as error:
        if not isinstance(error, RuntimeError | ValueError | TypeError | NotImplementedError):
            return Ended(error=traceback.format_exc())
        text = re.sub(r"^\[rank\d.*?\] ", "", str(error).splitlines()[0])
        return Ended(error=f"{type(error).__name__}: {text}", wrong=case.touched())
    if not spec.asynchronous and works and spec.name != "batch_isend_irecv":
        return Ended(wrong="a synchronous call returned a Work")
    shown = ""
    with contextlib.suppress(Exception):  # the coalescing manager has no futures
        shown = "; ".join(_shown(work.get_future().wait()) for work in works)
    return Ended(wrong=case.trouble(), shown=shown)


def judge(spec: Spec, ended: Ended) -> str:
    """Say what is wrong with how a call ended over fastcomm, if anything."""
    if not spec.refused:
        return ended.error or ended.wrong
    # torch itself refuses most of complex numbers.
    if not re.match("UnsupportedError|ValueError: .* on complex tensors", ended.error):
        return f"not refused: {ended}"
    return ended.wrong


def difference(spec: Spec, own: Ended, gloo: Ended) -> str:
    """Say how a call over fastcomm differed from the one over Gloo, if it did."""
    if own.error and gloo.error:
        return ""
    if own.error or gloo.error:
        refused = "fastcomm" if own.error else "Gloo"
        text = re.sub(r"[\d\[(][\d, \])]*", "# ", own.error or gloo.error)
        return f"{spec.name}: {refused} alone refuses: {text[:150]}"
    if spec.exact and gloo.wrong and not own.wrong:
        return f"{spec.name}, {spec.dtype}, {spec.op}: Gloo's result is another"
    if spec.name == "all_gather_into_tensor":  # over Gloo's a list of parts, over NCCL the output
        return ""
    if gloo.shown and own.shown != gloo.shown:
        return f"{spec.name}: {FUTURE} {own.shown}, over Gloo {gloo.shown}"
    return ""


def _draw(seed: int) -> Spec:
    return draw_spec(seed, GROUPS)


def _play_both(
    spec: Spec, rank: int, group: dist.ProcessGroup, gloo_group: dist.ProcessGroup
) -> Played:
    own = _play(spec, rank, group)
    wrong = judge(spec, own)
    played = Played(wrong, bool(wrong and own.error))
    if not played.error and spec.for_gloo is not None:
        played.difference = difference(spec, own, _play(spec.for_gloo, rank, gloo_group))
    return played


TRIALS = Trials(_draw, _play_both)

if __name__ == "__main__":
    command(TRIALS, __doc__)
