"""A cost model of `all_reduce` composed of hosts: fitted here, and carried on to more hosts.

    python benchmarks/scaling.py --json results/scaling.jsonl    # measures, 5 minutes
    python benchmarks/scaling.py --show results/scaling.jsonl    # all tables
    python benchmarks/scaling.py --show results/scaling.jsonl --of paper

Hosts are network namespaces with links of 1 Gbit/s (benchmarks/hosts.py), which share the
processors of this machine. So the model has two parts: what a host has to do (`Work`), counted from
the source, whose costs in processor time are fitted; and the time of a call, which follows from the
work of all hosts on these processors, from bytes over links and from delays. On paper each rank has
a processor of its own.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hosts import hosts_like, join, measured
from support.namespaces import Host, why_no_delay, why_no_switch
from support.ranks import World, run_ranks

from fastcomm._measure.units import format_size
from fastcomm.bench.records import RecordWriter, read_records

Row = dict[str, Any]

SIZES = (8, 64 << 10, 1 << 20, 25 << 20)
SHAPES = [(hosts, each) for each in (1, 2, 4) for hosts in (2, 3, 4, 6, 8) if hosts * each > 2]
RATE = "1gbit"
PROCESSORS = 2  # of the machine of the record
# Not fitted, but compared with the model.
DELAYED = [(2, 2), (4, 1), (4, 2)]
DELAY_US = 500

# Of csrc/c10d/engines/hosts/host_exchange.h.
SHORT, ENCLOSED = 64 << 10, 2048
ENVELOPE = 2400  # header, detail, and room for what is enclosed
FRAME = 1538 / 1448  # Ethernet's bytes for those of TCP, in frames of 1500
BURST = 128 << 10  # of hosts_like(): passes without a limit


def chunk_bytes(size: int) -> int:
    """Return the bytes of a chunk of a long message: HostThresholds::chunk_of, by default."""
    return min(max(size // 6 >> 20 << 20, 1 << 20), 4 << 20)


@dataclass(frozen=True)
class Work:
    """What one host does in a call, all of its ranks together.

    Attributes:
        ranks: that are woken for the call.
        steps: of ranks inside the host, after the first two.
        messages: to other hosts; as many come from there.
        sent: bytes in them.
        summed: bytes that its ranks give.
    """

    ranks: float
    steps: float
    messages: float
    sent: float
    summed: float


def work(hosts: int, each: int, size: int) -> Work:
    """Return the work of a host in an `all_reduce` of fp32 that is composed."""
    others = hosts - 1
    if size <= SHORT:  # the first ranks exchange partials, each with each
        apart = size > ENCLOSED
        messages, sent = others, others * ENVELOPE
        if apart:
            messages, sent = 2 * messages, sent + others * size
        return Work(each, 0, messages, sent, each * size)
    chunks = math.ceil(size / chunk_bytes(size))
    ways = 1 if hosts == 2 else 2  # slices as a whole; else their parts, and the parts' sums
    messages = each * others * (1 + chunks * ways)
    carried = size * (1.0 if hosts == 2 else 2 * others / hosts)
    steps = 2 * each * (chunks - 1) if each > 1 else 0
    return Work(each, steps, messages, carried + each * others * ENVELOPE, each * size)


def rounds(hosts: int, size: int) -> int:
    """Return how many messages wait for each other: envelope, partials, results."""
    if size <= SHORT:  # what is not in the envelope follows it at once
        return 1
    return 2 if hosts == 2 else 3


@dataclass(frozen=True)
class Model:
    """Fitted figures: costs of `Work` in processor time, and how a call's time follows.

    Attributes:
        costs: milliseconds for one of each of the attributes of `Work`.
        call_ms: of a call, whatever it does.
        share: of all processor time over the number of processors, what a call waits for.
        overlap: 1: link and processors work in turn; large: the longer one of the two counts.
    """

    costs: tuple[float, ...]
    call_ms: float = 0.0
    share: float = 1.0
    overlap: float = 1.0

    def busy_ms(self, done: Work) -> float:
        """Return the processor time of one host's work."""
        return math.fsum(
            cost * amount for cost, amount in zip(self.costs, astuple(done), strict=True)
        )

    def joined_ms(self, size: int, link_ms: float, busy_ms: float) -> float:
        """Return the time of both, which overlap in long messages."""
        power = self.overlap if size > SHORT else 1.0
        return math.pow(math.pow(link_ms, power) + math.pow(busy_ms, power), 1 / power)

    def here_ms(self, hosts: int, each: int, size: int, rate: str, delay_us: int) -> float:
        """Return the time of a call between namespaces, which share the processors."""
        done = work(hosts, each, size)
        busy = self.share * hosts * self.busy_ms(done) / min(PROCESSORS, hosts * each)
        over = max(done.sent * FRAME - BURST, 0.0)
        link = over * 8e3 / (float(rate.removesuffix("gbit")) * 1e9) if rate != "0" else 0.0
        waits = rounds(hosts, size) * delay_us / 1e3
        return self.call_ms + waits + self.joined_ms(size, link, busy)


def shape_of(row: Row) -> tuple[int, int]:
    hosts, each = row["shape"].split("x")
    return int(hosts), int(each)


def fit(rows: Sequence[Row]) -> Model:
    """Return the model with the least relative errors, in the sense of least squares."""
    from scipy.optimize import least_squares, nnls

    barriers = barriers_of(rows)
    fitted = [row for row in rows if is_fitted(row)]
    used = np.array([row["fastcomm_cpu_ms"] for row in fitted])  # with a barrier
    alone = used - np.array([barriers[row["shape"]] for row in fitted])
    counted = np.array(
        [
            [hosts * amount for amount in astuple(work(hosts, each, row["bytes"]))]
            for row in fitted
            for hosts, each in [shape_of(row)]
        ]
    )
    scale = counted.max(axis=0)
    found, _ = nnls(counted / scale / used[:, None], alone / used)
    costs = tuple(float(cost) for cost in found / scale)

    def errors(values: Any) -> Any:
        model = Model(costs, *values)
        return [math.log(model_ms(model, row) / row["fastcomm_ms"]) for row in fitted]

    bounds = ([0.0, 0.1, 1.0], [10.0, 10.0, 12.0])
    return Model(costs, *map(float, least_squares(errors, [0.3, 1.0, 3.0], bounds=bounds).x))


def model_ms(model: Model, row: Row) -> float:
    hosts, each = shape_of(row)
    return model.here_ms(hosts, each, row["bytes"], row["rate"], row["delay_us"])


def is_fitted(row: Row) -> bool:
    return bool(row["op"] == "all_reduce" and row["delay_us"] == 0)


def barriers_of(rows: Sequence[Row]) -> dict[str, float]:
    """Return the processor time of a barrier of Gloo, of each shape: measured with another."""
    found = [row for row in rows if row["op"] == "barrier" and row["delay_us"] == 0]
    return {row["shape"]: row["gloo_cpu_ms"] / 2 for row in found}


def fit_forming(rows: Sequence[Row], side: str) -> tuple[float, ...]:
    """Return the seconds of forming a group: at least, for each rank, for each two of them."""
    from scipy.optimize import nnls

    formed = [row for row in rows if row["op"] == "form"]
    ranks = np.array([math.prod(shape_of(row)) for row in formed], dtype=float)
    counted = np.stack([np.ones_like(ranks), ranks, ranks * (ranks - 1) / 2], axis=1)
    seconds = np.array([row[f"{side}_s"] for row in formed])
    found, _ = nnls(counted / seconds[:, None], np.ones(len(formed)))
    return tuple(float(value) for value in found)


# On paper: what is assumed of a cluster. Processors cost what they do here.
PAPER_RATE_GBIT = 25.0
PAPER_DELAY_US = 20.0
PAPER_RANKS = 8  # a host, each with a processor
PAPER_HOSTS = (4, 16, 64, 256, 1000)


def paper_ms(model: Model, hosts: int, size: int) -> tuple[float, float]:
    """Return the predicted time of a call, and what of it the messages' costs are."""
    done = work(hosts, PAPER_RANKS, size)
    alone = model.busy_ms(done) if size <= SHORT else model.busy_ms(done) / PAPER_RANKS
    if size <= SHORT:  # the first rank waits for no more than itself, and one wake-up
        alone -= model.costs[0] * (PAPER_RANKS - 1)
    messages = model.costs[2] * done.messages / (1 if size <= SHORT else PAPER_RANKS)
    link = done.sent * FRAME * 8e3 / (PAPER_RATE_GBIT * 1e9)
    waits = rounds(hosts, size) * PAPER_DELAY_US / 1e3
    return model.call_ms + waits + model.joined_ms(size, link, alone), messages


def pairs_ms(model: Model, hosts: int, size: int) -> float:
    """Return the same for first ranks that met in pairs, at doubling distances: none does."""
    turns = math.ceil(math.log2(hosts))
    link = (ENVELOPE + size) * FRAME * 8e3 / (PAPER_RATE_GBIT * 1e9)
    turn = PAPER_DELAY_US / 1e3 + model.costs[2] + link + model.costs[3] * (ENVELOPE + size)
    return model.call_ms + model.costs[0] + turns * turn


def paper_forming_s(found: tuple[float, ...], ranks: int) -> float:
    """Return the predicted seconds of forming a group whose ranks have a processor each."""
    least, each, pair = found
    # Here all ranks' work is done by PROCESSORS, and that of a pair by both of its ranks.
    return least + PROCESSORS * (each + pair * (ranks - 1) / 2)


def measure(
    world: World, hosts: list[Host], each: int, link: tuple[str, int], wanted: list[tuple[str, int]]
) -> list[Row]:
    """Form both groups and measure their calls, on one rank with the others."""
    sides, seconds = join(world, hosts, each)
    rate, delay_us = link
    formed = {f"{name}_s": round(spent, 3) for name, spent in seconds.items()}
    row = {"shape": f"{len(hosts)}x{each}", "rate": rate, "op": "form", **formed}
    rows = measured(sides, len(hosts), each, link, wanted)
    return [{**row, "delay_us": delay_us}, *(asdict(row) for row in rows)]


def run() -> Iterator[Row]:
    """Yield the rows of every shape."""
    points = [(*shape, RATE, 0) for shape in SHAPES]
    points += [(*shape, "0", DELAY_US) for shape in DELAYED]
    for number, each, rate, delay_us in points:
        link = rate, delay_us
        sizes = SIZES[:2] if delay_us else SIZES
        wanted = [("all_reduce", size) for size in sizes] + [("barrier", 0)]
        with hosts_like(number, *link) as hosts:
            found = run_ranks(number * each, measure, hosts, each, link, wanted)
        slowest = {name: max(rows[0][name] for rows in found) for name in ("fastcomm_s", "gloo_s")}
        yield {**found[0][0], **slowest}
        yield from found[0][1:]


Table = tuple[list[str], list[list[str]]]


def figure(value: float) -> str:
    """Return a number with two digits, which another library's rounding does not change."""
    rounded = float(f"{value:.2g}")
    digits = max(0, 1 - math.floor(math.log10(rounded))) if rounded else 0
    return f"{rounded:,.{digits}f}"


def times_table(rows: Sequence[Row]) -> Table:
    """Return measured times, and the model's beside them."""
    model = fit(rows)
    body = []
    for shape, delay_us in dict.fromkeys((row["shape"], row["delay_us"]) for row in rows):
        of = [row for row in rows if (row["shape"], row["delay_us"]) == (shape, delay_us)]
        cells = {
            row["bytes"]: f"{figure(row['fastcomm_ms'])} ({figure(model_ms(model, row))})"
            for row in of
            if row["op"] == "all_reduce"
        }
        link = f"{delay_us / 1e3:g} ms one way" if delay_us else "1 Gbit/s"
        where = shape.replace("x", " x ")
        body.append([where, link, *(cells.get(size, "") for size in SIZES)])
    return ["hosts x ranks", "link", *map(format_size, SIZES)], body


def errors_table(rows: Sequence[Row]) -> Table:
    """Return how far the model is from what was measured, also of shapes that it has not seen."""
    shapes = list(dict.fromkeys(row["shape"] for row in rows if is_fitted(row)))
    model = fit(rows)
    without = {shape: fit([row for row in rows if row["shape"] != shape]) for shape in shapes}
    choices: list[tuple[str, Callable[[Row], bool], Callable[[Row], Model]]] = [
        ("all shapes fitted", is_fitted, lambda row: model),
        ("each shape by a fit of the others", is_fitted, lambda row: without[row["shape"]]),
        ("links with a delay, not fitted", lambda row: row["delay_us"] > 0, lambda row: model),
    ]
    body = []
    for name, chosen, of in choices:
        line = [name]
        for size in SIZES:
            found = [
                abs(math.log(model_ms(of(row), row) / row["fastcomm_ms"]))
                for row in rows
                if row["op"] == "all_reduce" and row["bytes"] == size and chosen(row)
            ]
            off = [math.expm1(error) * 100 for error in found]
            line.append(f"{figure(statistics.median(off))} ({figure(max(off))})" if off else "")
        body.append(line)
    return ["off by %, median (worst)", *map(format_size, SIZES)], body


def parameters_table(rows: Sequence[Row]) -> Table:
    """Return the fitted figures."""
    model = fit(rows)
    call, step, message, sent, summed = model.costs
    body = [
        ["processor time of a rank in a call", f"{figure(call * 1e3)} µs"],
        ["of a further step of a rank inside its host", f"{figure(step * 1e3)} µs"],
        ["of a message between hosts, both ends", f"{figure(message * 1e3)} µs"],
        ["of a byte between hosts, both ends", f"{figure(sent * 1e6)} ns"],
        ["of a byte that a rank gives", f"{figure(summed * 1e6)} ns"],
        ["time of a call, whatever it does", f"{figure(model.call_ms)} ms"],
        ["what it waits for of all processor time, over the processors", figure(model.share)],
        ["link and processors: 1 in turn, more beside each other", figure(model.overlap)],
    ]
    return ["fitted", ""], body


def paper_table(rows: Sequence[Row]) -> Table:
    """Return predictions for more hosts than were measured."""
    model = fit(rows)
    body = []
    for hosts in PAPER_HOSTS:
        line = [f"{hosts:,}"]
        for size in (8, SHORT):
            time_ms, messages = paper_ms(model, hosts, size)
            line.append(f"{figure(time_ms)} ({figure(messages)})")
            line.append(figure(pairs_ms(model, hosts, size)))
        done = work(hosts, PAPER_RANKS, SIZES[-1])
        time_ms, messages = paper_ms(model, hosts, SIZES[-1])
        line.append(f"{figure(time_ms)} ({figure(messages)})")
        line.append(figure(done.sent * FRAME * 8e3 / (PAPER_RATE_GBIT * 1e9)))
        line.append(f"{math.ceil(done.messages / PAPER_RANKS):,}")
        body.append(line)
    heads = ["predicted, ms: hosts"]
    for size in (8, SHORT):
        heads += [format_size(size), f"{format_size(size)} in pairs"]
    return [*heads, format_size(SIZES[-1]), "its link alone", "messages a rank"], body


def forming_table(rows: Sequence[Row]) -> Table:
    """Return the seconds that it takes to form groups, measured, and predicted from them."""
    fits = {side: fit_forming(rows, side) for side in ("fastcomm", "gloo")}
    body = []
    formed = [row for row in rows if row["op"] == "form" and row["delay_us"] == 0]
    for row in formed:
        if shape_of(row)[0] not in (2, 4, 8):
            continue
        ranks = math.prod(shape_of(row))
        cells = [figure(row[f"{side}_s"]) for side in fits]
        body.append([row["shape"].replace("x", " x "), "measured", f"{ranks}", *cells])
    for hosts in PAPER_HOSTS[1:]:
        ranks = hosts * PAPER_RANKS
        cells = [figure(paper_forming_s(found, ranks)) for found in fits.values()]
        body.append([f"{hosts:,} x {PAPER_RANKS}", "predicted", f"{ranks:,}", *cells])
    return ["hosts x ranks", "", "ranks", "fastcomm s", "Gloo again s"], body


TABLES: dict[str, Callable[[Sequence[Row]], Table]] = {
    "times": times_table,
    "errors": errors_table,
    "parameters": parameters_table,
    "paper": paper_table,
    "forming": forming_table,
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, or show what was measured and what follows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file of records to create")
    parser.add_argument("--show", type=Path, help="records to show")
    parser.add_argument("--of", choices=TABLES, action="append", help="a table; default: all")
    parser.add_argument("--style", default="simple", help="of tables: simple, github, ...")
    options = parser.parse_args(arguments)
    if options.json is not None:
        if (reason := why_no_switch() or why_no_delay()) is not None:
            print(f"scaling.py: {reason}", file=sys.stderr)
            return 1
        with RecordWriter(options.json, sys.argv) as writer:
            for row in run():
                writer.write(row)
    shown = options.show or options.json
    if shown is None:
        parser.error("--json or --show")
    from tabulate import tabulate

    rows = read_records(shown).rows
    for name in options.of or TABLES:
        heads, body = TABLES[name](rows)
        align = ["left"] + ["right"] * (len(heads) - 1)
        print(tabulate(body, heads, tablefmt=options.style, colalign=align, disable_numparse=True))
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
