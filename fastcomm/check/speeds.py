"""Speed of a path beside stock backends, and of the links between every two devices."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
import torch.cuda.comm  # which torch does not import by itself
import torch.distributed as dist

from fastcomm import comm
from fastcomm._measure.cases import CASES
from fastcomm._measure.cases.base import Call, buffers_from
from fastcomm._measure.contenders import Contender
from fastcomm._measure.line_up import make
from fastcomm._measure.objects import all_gather_object
from fastcomm._measure.queued import timer_on
from fastcomm._measure.stats import bandwidth_gbs
from fastcomm._measure.timing import measure, time_batch
from fastcomm.check.checker import SHORT, Checker, Row
from fastcomm.check.results import devices_of_one

CHECK = "speed"
_PAIR_CALLS = 7
_BALANCE_CALLS = 3


def _beside(checker: Checker) -> list[Contender]:
    """Return the stock backends to time beside a path, each with a group; call on all ranks."""
    if checker.device.type == "cpu":
        return make(("gloo",), checker.device)
    # NCCL refuses ranks that share a device.
    return make(("nccl",) * (not checker.shares) + ("symm_mem_two_shot",), checker.device)


def speed(checker: Checker, group: dist.ProcessGroup, budget_s: float) -> None:
    """Time an all_reduce of two sizes beside stock backends, interleaved; call on all ranks.

    ``budget_s`` is for both sizes.
    """
    if checker.broken:
        return
    others = _beside(checker)
    for size in (SHORT, checker.sizes.long):
        with buffers_from(checker.ordinary):
            case = CASES["all_reduce"](size, torch.float32, checker.rank.rank, checker.rank.size)
        timed = [Contender("fastcomm", group)]
        timed += [each for each in others if not each.why_not(case, checker.control, True)[0]]
        case.prepare()
        calls = [each.bind(case) for each in timed]
        timer = timer_on(checker.device)
        samples = measure(calls, checker.control, budget_s / 2, timer=timer)
        medians = [round(statistics.median(each.times_ns) / 1e3, 2) for each in samples]
        factor = case.bus_factor(checker.rank.size)
        row: Row = {"check": CHECK, "operation": "all_reduce", "bytes": size, "verdict": "ok"}
        row["median_us"] = medians[0]
        row["algbw_gbs"] = round(bandwidth_gbs(case.nbytes, medians[0]), 3)
        row["busbw_gbs"] = round(bandwidth_gbs(case.nbytes, medians[0]) * factor, 3)
        row["beside"] = {each.label: us for each, us in zip(timed, medians, strict=True)}
        del row["beside"]["fastcomm"]
        if samples[0].host_ns:
            row["host_us"] = round(statistics.median(samples[0].host_ns) / 1e3, 2)
        checker.report(row)


def primitives(checker: Checker, budget_s: float) -> None:
    """Time a broadcast and a sum of one process's devices beside ``torch.cuda.comm``.

    ``budget_s`` is for both operations.
    """
    if checker.broken:
        return
    devices = devices_of_one()
    numel = checker.sizes.long // 4
    terms = [torch.ones(numel, device=device) for device in devices]

    def synchronize() -> None:
        if devices[0].type != "cpu":
            module = torch.get_device_module(devices[0])
            for device in devices:
                module.synchronize(device)

    libraries: dict[str, Any] = {"fastcomm": comm}
    if devices[0].type == "cuda" and len(devices) > 1:
        libraries["torch.cuda.comm"] = torch.cuda.comm
    for operation in ("broadcast", "reduce_add"):

        def timed(library: Any, operation: str = operation) -> Call:
            def run() -> None:
                if operation == "broadcast":
                    library.broadcast(terms[0], devices)
                else:
                    library.reduce_add(terms)
                synchronize()

            return run

        calls = [timed(library) for library in libraries.values()]
        samples = measure(calls, checker.control, budget_s / 2)
        medians = [round(statistics.median(each.times_ns) / 1e3, 2) for each in samples]
        row: Row = {"check": CHECK, "operation": operation, "bytes": numel * 4, "verdict": "ok"}
        row["median_us"] = medians[0]
        row["algbw_gbs"] = round(bandwidth_gbs(numel * 4, medians[0]), 3)
        row["beside"] = dict(list(zip(libraries, medians, strict=True))[1:])
        checker.report(row)


def _each_pair(size: int) -> Iterator[tuple[int, int]]:
    for first in range(size):
        for second in range(first + 1, size):
            yield first, second


def pairs(checker: Checker) -> None:
    """Check and time a broadcast between every two devices, both ways; call on all ranks."""
    rank = checker.rank.rank
    numel = checker.sizes.pair // 4
    for pair in _each_pair(checker.rank.size):
        group = checker.make_group(list(pair))
        for source, target in (pair, pair[::-1]):
            took_us: list[float] = [0.0]

            def body(
                source: int = source, group: Any = group, took_us: list[float] = took_us
            ) -> int:
                if rank not in pair:  # noqa: B023 (called before the next turn)
                    return 0
                given = torch.arange(numel, dtype=torch.int32)
                tensor = given.to(checker.device) if rank == source else None
                if tensor is None:
                    tensor = checker.ordinary(numel, torch.int32).zero_()

                def call() -> None:
                    dist.broadcast(tensor, source, group=group)
                    checker.synchronize()

                call()
                checker.raise_unless_used(tensor, group)
                wrong = int(torch.ne(tensor.cpu(), given).sum())
                took_us[0] = statistics.median(time_batch(call, _PAIR_CALLS)) / 1e3
                return wrong

            row = checker.check("pair", "broadcast", checker.sizes.pair, body)
            times = all_gather_object(took_us[0], checker.control)
            if row["verdict"] == "ok":
                row["median_us"] = round(max(times[source], times[target]), 2)
                row["gbs"] = round(bandwidth_gbs(checker.sizes.pair, row["median_us"]), 3)
            checker.report({**row, "from": source, "to": target})


def balance(checker: Checker) -> None:
    """Time all_gather beside all_reduce for 2, 4, 8, ... of the ranks; call on all ranks.

    Over each link all_reduce moves twice as many bytes. Where all_gather takes longer than half of
    its time by much, links are used one after the other.
    """
    if checker.shares:
        return  # ranks take turns on a device: no link is measured
    ranks = checker.rank.size
    for of in sorted({ranks} | {2**power for power in range(1, ranks.bit_length())}):
        group = checker.make_group(list(range(of)))
        numel = checker.sizes.pair // 8 // of * of  # of 4 bytes: half as many as between two
        took_us = [0.0, 0.0]

        def body(of: int = of, group: Any = group, took_us: list[float] = took_us) -> int:
            if checker.rank.rank >= of:
                return 0
            whole = checker.ordinary(numel, torch.float32).zero_()  # noqa: B023 (called at once)
            part = torch.full_like(whole[: numel // of], float(checker.rank.rank))  # noqa: B023
            calls = (
                lambda: dist.all_reduce(whole, group=group),
                lambda: dist.all_gather_into_tensor(whole, part, group=group),
            )
            for turn, call in enumerate(calls):

                def to_the_end(call: Call = call) -> None:
                    call()
                    checker.synchronize()

                to_the_end()
                took_us[turn] = statistics.median(time_batch(to_the_end, _BALANCE_CALLS)) / 1e3
            return sum(int((whole.cpu().view(of, -1)[each] != each).sum()) for each in range(of))

        row = checker.check("balance", "all_gather_into_tensor", numel * 4, body)
        times = all_gather_object(took_us, checker.control)
        if row["verdict"] == "ok":
            reduce_us, gather_us = (max(each[turn] for each in times) for turn in (0, 1))
            row.update(of=of, all_reduce_us=round(reduce_us, 2), all_gather_us=round(gather_us, 2))
            row["ratio"] = round(gather_us / reduce_us, 3)
            row["gap"] = round(2 * gather_us / reduce_us, 3)  # of bus bandwidths
        checker.report(row)
