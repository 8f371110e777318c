"""What a change or a setting costs: the libraries of source trees, measured in turns.

    python benchmarks/two_trees.py ../before . --turns 40
    python benchmarks/two_trees.py ../before . ../before --turns 4 -- --ops all --ranks 4
    python benchmarks/two_trees.py .,FASTCOMM_RECORDS=off . .,FASTCOMM_RECORDS=off

Each turn measures every tree once, in an order drawn anew, and gives a ratio per row: the tree's
time by the first one's. The table has medians and quartiles of the ratios. The first tree named
again shows what one commit has against itself. Without more arguments two ranks, each bound to a
processor of its own, make short calls in a row and train by steps of stock DDP; arguments after
``--`` go to ``fastcomm bench``. In each tree the library must be built in place.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tabulate import tabulate

Times = dict[str, float]  # microseconds of a row
_BATCHES = 9
_STEPS_OF = 20  # calls: a step of DDP takes that many times as long, or longer


@dataclass(frozen=True)
class Side:
    """What is measured: a tree, and the variables that it runs with."""

    name: str
    tree: Path
    variables: dict[str, str]


def _side(name: str) -> Side:
    """Parse ``TREE[,NAME=VALUE]...``."""
    tree, *settings = name.split(",")
    pairs = [setting.partition("=") for setting in settings]
    if not all(key and equals for key, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f"not TREE or TREE,NAME=VALUE: {name!r}")
    path = Path(tree).resolve()
    if not list(path.glob("fastcomm/_C.*.so")):  # else Python takes what is installed
        raise argparse.ArgumentTypeError(
            f"{path}: no library is built in place there: run make build in it"
        )
    return Side(name, path, {key: value for key, _, value in pairs})


def _step() -> tuple[str, Callable[[], None]]:
    """Return a step of DDP, and its name with the size of its gradients."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(8, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    size = sum(parameter.nbytes for parameter in model.parameters())
    return f"step of DDP, {size >> 10} KiB", step


def _short_calls(rank: int, store: str, many: int) -> Times:
    """Return medians over batches of calls in a row; the first of two ranks sends first."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    import torch
    import torch.distributed as dist

    import fastcomm  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("fastcomm", rank=rank, world_size=2, init_method=f"file://{store}")
    peer = 1 - rank

    def there_and_back(data: torch.Tensor) -> None:
        for sender in (0, 1):
            dist.send(data, peer) if sender == rank else dist.recv(data, peer)

    calls: dict[str, Callable[[torch.Tensor], object]] = {
        "all_reduce": dist.all_reduce,
        "broadcast": lambda data: dist.broadcast(data, 0),
        "send and recv": there_and_back,
    }

    def timed(call: Callable[[], object], many: int) -> float:
        means = []
        for _ in range(_BATCHES + 1):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(many):
                call()
            means.append((time.perf_counter() - begin) / many * 1e6)
        return statistics.median(means[1:])

    times: Times = {}
    for size in (8, 4096):
        data = torch.zeros(size // 4)
        for name, call in calls.items():
            times[f"{name}, {size} B"] = timed(partial(call, data), many)
    name, step = _step()
    times[name] = timed(step, max(1, many // _STEPS_OF))
    dist.destroy_process_group()
    return times


def _times_of(side: Side, calls: int, bench: list[str]) -> Times:
    environment = {**os.environ, "PYTHONPATH": str(side.tree), "OMP_NUM_THREADS": "1"}
    environment |= side.variables
    with tempfile.TemporaryDirectory() as folder:

        def started(*arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, *arguments]
            return subprocess.Popen(
                command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
            )

        if bench:
            options = ["--backends", "fastcomm", "--quiet", "--json", "-", *bench]
            programs = [started("-m", "fastcomm", "bench", *options)]
        else:
            here = str(Path(__file__).resolve())
            programs = [
                started(here, "--rank", str(rank), f"{folder}/store", str(calls)) for rank in (0, 1)
            ]
        said = [program.communicate()[0] for program in programs]
    if any(program.returncode != 0 for program in programs):
        raise SystemExit(f"{side.name}: a measurement failed; what it said is above")
    lines = [json.loads(line) for line in said[0].splitlines()]
    if not bench:
        return dict(lines[0])
    rows = [line for line in lines if line["type"] == "row"]
    return {f"{row['op']}, {row['bytes']} B, {row['dtype']}": row["median_us"] for row in rows}


def _table(turns: list[list[Times]], names: list[str]) -> str:
    rows = []
    for row in turns[0][0]:
        of_first = [turn[0][row] for turn in turns]
        line: list[object] = [row, f"{statistics.median(of_first):.2f}"]
        for place in range(1, len(names)):
            ratios = [turn[place][row] / turn[0][row] for turn in turns]
            low, _, high = statistics.quantiles(ratios * 2, n=4, method="inclusive")
            line.append(f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")
        rows.append(line)
    return str(tabulate(rows, ["", f"{names[0]}, us", *names[1:]], disable_numparse=True))


def main() -> None:
    """Measure, and print a table."""
    if sys.argv[1:2] == ["--rank"]:
        print(json.dumps(_short_calls(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sides",
        nargs="+",
        type=_side,
        metavar="TREE[,NAME=VALUE]",
        help="the first is the others' measure; a variable of the environment can be set for each",
    )
    parser.add_argument("--turns", type=int, default=40, metavar="N")
    parser.add_argument("--calls", type=int, default=300, metavar="N", help="short ones, in a row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every turn's times")
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    options, bench = parser.parse_args(given[:split]), given[split + 1 :]
    sides: list[Side] = options.sides
    from fastcomm._measure.environment import describe  # not in ranks, which are bound before

    names = [side.name for side in sides]
    turns: list[list[Times]] = []
    for turn in range(options.turns):
        measured: dict[int, Times] = {}
        for place in random.sample(range(len(sides)), len(sides)):
            measured[place] = _times_of(sides[place], options.calls, bench)
        turns.append([measured[place] for place in range(len(sides))])
        print(f"turn {turn + 1} of {options.turns}", file=sys.stderr)
        if options.json is not None:
            kept = {"trees": names, "turns": turns, "environment": describe(sys.argv)}
            options.json.write_text(json.dumps(kept) + "\n")
    print(_table(turns, names))


if __name__ == "__main__":
    main()
