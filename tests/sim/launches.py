"""What an operation between devices of several processes launches: ``docs/launches.md``.

Each operation is captured into a graph on simulated devices, and the graph's parts are counted. The
code that launches them is the one that runs on CUDA::

    python tests/sim/launches.py        # writes the table
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.ranks import World, run_ranks  # noqa: E402

import fastcomm  # noqa: E402
import sim  # noqa: E402

TABLE = ROOT / "docs" / "launches.md"
SIZE = 3
WINDOW = 8192  # bytes
FOR_SLICES = 1 << 20  # large enough for a broadcast in slices
SLOT = 1024
HEADER = f"""# Launches of an operation between processes' devices

Written by `python tests/sim/launches.py` from captured graphs; do not edit. {SIZE} ranks, float32.
A message is short up to `FASTCOMM_ONE_SHOT_BYTES`; one round fits into `FASTCOMM_WINDOW_BYTES`. In
place: all tensors are in the group's memory, as of `fastcomm.empty(device=...)`. A broadcast goes
in slices from 256 KiB on. A fused reduction is of two gradients, in place end to end.

`short` is `short_kernel`, `copy` `multi_copy_kernel`, `reduce` `multi_reduce_kernel` or
`indirect_reduce_kernel`, `combine` `multi_combine_kernel` (all but sums), `meet` `meeting_kernel`.
`find` meets and looks up ranks' tensors: in graphs always, else once there are some in the group's
memory. `pairs` compares sizes, `rest` goes on while others have more. `look`
(`multi_norm_kernel`, `multi_gradient_kernel`) and `norm` find the norm. `spoil` (`spoil_kernel`)
does nothing unless the operation has failed.

| operation | rank | short | one round | launches | in three rounds | in place | launches |
|---|---|---|---|---|---|---|---|
"""
NAMES = {"multi_copy": "copy", "multi_reduce": "reduce", "multi_combine": "combine"}
NAMES.update({"pairs_kernel": "pairs", "rest_kernel": "rest"})
NAMES.update({"finding_kernel": "find", "indirect_reduce": "reduce"})
NAMES.update({"multi_gradient": "look", "gradient_norm": "norm"})
NAMES.update({"meeting_kernel": "meet", "spoil_kernel": "spoil", "short.cu": "short"})

Tensors = list[torch.Tensor]


def _operations(
    count: int, rank: int, empty: Callable[[int], torch.Tensor]
) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return each operation of ``count`` elements in a window's area, and the root or -1."""

    def ones(many: int) -> torch.Tensor:
        return empty(many).fill_(1.0)

    whole, result, part = ones(count), ones(count), ones(count // SIZE)
    parts = list(ones(count // SIZE * SIZE).chunk(SIZE))
    wide = ones(SIZE * count)
    outputs = list(wide.chunk(SIZE))
    offsets = [owner * count for owner in range(SIZE + 1)]
    cut, swapped = (ones(count // SIZE * SIZE) for _ in range(2))
    # End to end; separate if they are in torch's memory.
    grads = list(empty(count).fill_(1.0).split([count // 2, count - count // 2]))
    if not fastcomm.is_shared(grads[0]):
        grads = [grad.clone() for grad in grads]
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
        "all_to_all_single": (-1, lambda: dist.all_to_all_single(swapped, cut)),
        "fused_all_reduce": (-1, lambda: fastcomm.fused_all_reduce_(grads)),
        "fused_all_reduce, bf16": (
            -1,
            lambda: fastcomm.fused_all_reduce_(grads, comm_dtype=torch.bfloat16),
        ),
        "gather_shards": (-1, lambda: fastcomm.gather_shards_([wide], [offsets])),
    }


def _captured(world: World, window: int) -> list[tuple[str, str, str, str, int, int, str, int]]:
    """Return rows: operation, whose, what is launched if it is short, what in one round, how many
    that are, how many in three rounds; and what in place in one round, and how many that are."""
    sim.load()
    device = f"sim:{world.rank}"
    torch.sim.set_device(world.rank)
    world.init("cpu:fastcomm,sim:fastcomm")
    dist.all_reduce(torch.ones(1, device=device))
    stream = torch.Stream(device)
    elements = window // 4 // SIZE // 64 * 64 * SIZE  # the same for parts and for the whole
    counts = (SLOT // 4 // SIZE // 4 * 4, elements, 3 * elements)
    ordinary = functools.partial(torch.empty, device=device)
    short, once, thrice = (_operations(count, world.rank, ordinary) for count in counts)
    rows: list[tuple[str, str, str, str, int, int, str, int]] = []
    # Once there is such memory, an opening meeting looks ranks' tensors up: it comes last.
    for name, (root, call) in once.items():
        found = [_kinds(world, stream, each) for each in (short[name][1], call, thrice[name][1])]
        whose = "all" if root < 0 else "root" if root == world.rank else "others"
        kinds = (" ".join(found[0]), " ".join(found[1]))
        rows.append((name, whose, *kinds, len(found[1]), len(found[2]), "", 0))
    shared = functools.partial(fastcomm.empty, device=device)
    placed = _operations(counts[1], world.rank, shared)
    in_place = [_kinds(world, stream, call) for _, call in placed.values()]
    return [(*row[:6], " ".join(f), len(f)) for row, f in zip(rows, in_place, strict=True)]


def _kinds(world: World, stream: torch.Stream, operation: Callable[[], object]) -> list[str]:
    torch.sim.synchronize()
    with stream:
        graph = sim.load().CapturedGraph(world.rank, stream.stream_id)
        operation()
        graph.end()
    return [_kind(text) for text in graph.nodes()]


def _kind(text: str) -> str:
    return next(name for word, name in NAMES.items() if word in text)


def _rows(window: int) -> list[tuple[str, str, str, str, int, int, str, int]]:
    """Return the rows of all ranks, each once, by operation."""
    settings = {"FASTCOMM_WINDOW_BYTES": str(window), "FASTCOMM_ONE_SHOT_BYTES": str(SLOT)}
    ranks = run_ranks(SIZE, _captured, window, environment=settings)
    return [row for rows in zip(*ranks, strict=True) for row in dict.fromkeys(rows)]


def table() -> str:
    """Return the page."""
    rows = _rows(WINDOW)
    slices = [row for row in _rows(FOR_SLICES) if row[0] == "broadcast"]
    behind = [row[0] for row in rows].index("gather")
    rows[behind:behind] = [("broadcast, in slices", *row[1:]) for row in slices]
    lines: list[str] = []
    for name, *cells in rows:
        operation = f"`{name}`".replace(", MAX`", "`, `MAX`").replace(
            ", bf16`", "`, bf16 on the wire"
        )
        operation = operation.replace(", in slices`", "`, in slices")
        lines.append("| " + " | ".join(map(str, (operation, *cells))) + " |")
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    from sim import launches  # ranks find their function there

    TABLE.write_text(launches.table())
