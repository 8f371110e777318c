"""What an operation between devices of several processes launches: ``docs/launches.md``.

Each operation is captured into a graph on simulated devices, and the graph's parts are counted. The
code that launches them is the one that runs on CUDA::

    python tests/sim/launches.py        # writes the table
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.ranks import World, run_ranks  # noqa: E402

import sim  # noqa: E402

TABLE = ROOT / "docs" / "launches.md"
SIZE = 3
WINDOW = 8192  # bytes
SLOT = 1024
ENVIRONMENT = {"FASTCOMM_WINDOW_BYTES": str(WINDOW), "FASTCOMM_ONE_SHOT_BYTES": str(SLOT)}
HEADER = f"""# Launches of an operation between processes' devices

Written by `python tests/sim/launches.py`, which counts what a captured graph consists of; do not
edit. {SIZE} ranks, float32. A message is short where what a rank reads of it, its own included, is
no more than `FASTCOMM_ONE_SHOT_BYTES`. One round is a message that fits into a window's area
(`FASTCOMM_WINDOW_BYTES`; of operations with a part for each rank, all of its parts). `short` stands
for `short_kernel`, `meet` for `meeting_kernel`, `copy` for `multi_copy_kernel`, `reduce` for
`multi_reduce_kernel`, `combine` for `multi_combine_kernel`, which reduces all but sums, `spoil` for
`spoil_kernel`, which does nothing unless the operation has failed.

| operation | rank | short | one round | launches | launches of three rounds |
|---|---|---|---|---|---|
"""
NAMES = {"multi_copy": "copy", "multi_reduce": "reduce", "multi_combine": "combine"}
NAMES.update({"meeting_kernel": "meet", "spoil_kernel": "spoil", "short.cu": "short"})

Tensors = list[torch.Tensor]


def _operations(count: int, device: str, rank: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return each operation of ``count`` elements in a window's area, and the root or -1."""
    whole, result = torch.ones(count, device=device), torch.ones(count, device=device)
    part = torch.ones(count // SIZE, device=device)
    parts = [part.clone() for _ in range(SIZE)]
    wide = torch.ones(SIZE * count, device=device)
    outputs = list(wide.chunk(SIZE))
    cut = torch.ones(count // SIZE * SIZE, device=device)
    at_root: dict[str, Tensors | None] = {"gather": outputs, "scatter": parts}
    if rank != 0:
        at_root = dict.fromkeys(at_root)
    return {
        "all_reduce": (-1, lambda: dist.all_reduce(whole)),
        "all_reduce, MAX": (-1, lambda: dist.all_reduce(whole, dist.ReduceOp.MAX)),
        "reduce": (0, lambda: dist.reduce(whole, 0)),
        "reduce_scatter_tensor": (-1, lambda: dist.reduce_scatter_tensor(part, cut)),
        "all_gather_into_tensor": (-1, lambda: dist.all_gather_into_tensor(wide, result)),
        "broadcast": (0, lambda: dist.broadcast(whole, 0)),
        "gather": (0, lambda: dist.gather(result, at_root["gather"], 0)),
        "scatter": (0, lambda: dist.scatter(part, at_root["scatter"], 0)),
    }


def _captured(world: World) -> list[tuple[str, str, str, str, int, int]]:
    """Return rows: operation, whose, what is launched if it is short, what in one round, how many
    that are, and how many in three rounds."""
    native = sim.load()
    device = f"sim:{world.rank}"
    torch.sim.set_device(world.rank)
    world.init("cpu:fastcomm,sim:fastcomm")
    dist.all_reduce(torch.ones(1, device=device))
    stream = torch.Stream(device)
    elements = WINDOW // 4 // SIZE // 64 * 64 * SIZE  # the same for parts and for the whole
    counts = (SLOT // 4 // SIZE // 4 * 4, elements, 3 * elements)
    short, once, thrice = (_operations(count, device, world.rank) for count in counts)
    torch.sim.synchronize()
    rows = []
    for name, (root, call) in once.items():
        found = []
        for operation in (short[name][1], call, thrice[name][1]):
            with stream:
                graph = native.CapturedGraph(world.rank, stream.stream_id)
                operation()
                graph.end()
            kinds = [_kind(text) for text in graph.nodes()]
            found.append(kinds)
        whose = "all" if root < 0 else "root" if root == world.rank else "others"
        rows.append((name, whose, *(" ".join(f) for f in found[:2]), len(found[1]), len(found[2])))
    return rows


def _kind(text: str) -> str:
    return next(name for word, name in NAMES.items() if word in text)


def table() -> str:
    """Return the page."""
    lines: list[str] = []
    for rows in zip(*run_ranks(SIZE, _captured, environment=ENVIRONMENT), strict=True):
        for row in dict.fromkeys(rows):
            name, whose, short, kinds, one, three = row
            operation = f"`{name}`".replace(", MAX`", "`, `MAX`")
            lines.append(f"| {operation} | {whose} | {short} | {kinds} | {one} | {three} |")
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    from sim import launches  # ranks find their function there

    TABLE.write_text(launches.table())
