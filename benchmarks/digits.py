"""Train a small convolutional network with stock DistributedDataParallel on CPU processes.

    python benchmarks/digits.py --backend fastcomm
    torchrun --nproc-per-node 2 benchmarks/digits.py --backend gloo

The backend's name is all that differs between two runs; the rest, seeds included, is fixed.

Time in communication: every eight training steps are followed by two steps of a twin of the model
(same layers, same data, a DDP of its own) under ``no_sync()``, which exchanges nothing.  The twin
never synchronises at all, because DDP still broadcasts buffers in the first forward under
``no_sync()`` after a synchronising step.  A step's time is the maximum over the ranks, so imbalance
between them is in both figures.  share = 1 - median(no_sync steps) / median(training steps).
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from digits_data import Split, batches, load_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastcomm._measure.launch import RankError, launch
from fastcomm._measure.rank import Rank
from fastcomm.bench.records import RecordWriter

TRAINING_STEPS, NO_SYNC_STEPS = 8, 2  # the pattern of interleaving
TARGET_ACCURACY = 0.97


@dataclass(frozen=True)
class Options:
    """What a run depends on, apart from seeds; ``batch`` is that of one rank."""

    backend: str
    ranks: int = 2
    epochs: int = 12
    batch: int = 32
    max_steps: int | None = None


def make_model() -> nn.Module:
    """Three convolutions with batch normalisation (so there are buffers), about 60,000 weights."""
    torch.manual_seed(0)

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 32),
        *block(32, 64),
        nn.MaxPool2d(2),
        *block(64, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, 10),
    )


class Trainer:
    """A model under stock DDP, its optimiser, and the times of its steps in ns."""

    def __init__(self, total_steps: int) -> None:
        self.model = DistributedDataParallel(make_model())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * min(1, step / total_steps))
        )
        self.loss = nn.CrossEntropyLoss()
        self.times_ns: list[int] = []

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """One step; the loss of this rank's batch."""
        start = time.perf_counter_ns()
        self.optimizer.zero_grad()
        loss = self.loss(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.times_ns.append(time.perf_counter_ns() - start)
        self.schedule.step()
        return float(loss.detach())


def train(options: Options) -> dict[str, Any]:
    """Train in an initialised process group; the record of the run, the same on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    data, held_out = load_split()
    per_epoch = len(batches(0, len(data.labels), options.batch, rank, size))
    total = min(options.epochs * per_epoch, options.max_steps or sys.maxsize)
    trainer, twin = Trainer(total), Trainer(total)
    losses: list[float] = []
    accuracy: list[float] = []
    while len(losses) < total:
        epoch = len(losses) // per_epoch
        for indices in batches(epoch, len(data.labels), options.batch, rank, size):
            if len(losses) == total:
                break
            images, labels = data.images[indices], data.labels[indices]
            losses.append(trainer.step(images, labels))
            if len(losses) % TRAINING_STEPS == 0:
                with twin.model.no_sync():
                    for _ in range(NO_SYNC_STEPS):
                        twin.step(images, labels)
        accuracy.append(evaluate(trainer.model.module, held_out))
        if rank == 0:
            print_epoch(epoch, losses[epoch * per_epoch :], accuracy[-1])
    return make_record(options, trainer, twin, losses, accuracy)


def evaluate(model: nn.Module, held_out: Split) -> float:
    """Share of the held-out images that this rank's model names correctly."""
    model.eval()
    with torch.no_grad():
        found = model(held_out.images).argmax(1)
    model.train()
    return int(found.eq(held_out.labels).sum()) / len(held_out.labels)


def gather(values: list[float]) -> list[list[float]]:
    """``values`` of every rank, exactly, over the backend in use."""
    mine = torch.tensor(values, dtype=torch.float64)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return [part.tolist() for part in parts]


def slowest_ms(times_ns: list[int]) -> list[float]:
    """For each step the time of the slowest rank; the first steps (allocation, tuning) left out."""
    by_rank = gather([time_ns / 1e6 for time_ns in times_ns])
    return [max(step) for step in zip(*by_rank, strict=True)][min(3, len(times_ns) // 2) :]


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def make_record(
    options: Options, trainer: Trainer, twin: Trainer, losses: list[float], accuracy: list[float]
) -> dict[str, Any]:
    """All results; per-step losses of every rank as hexadecimal floats, which are exact."""
    model = trainer.model.module
    # Buffers of batch normalisation differ between ranks until the next forward: rank 0's count.
    mine = digest(dict(model.named_parameters()))
    as_numbers = [float(byte) for byte in bytes.fromhex(mine)]
    step_ms = slowest_ms(trainer.times_ns)
    no_sync_ms = slowest_ms(twin.times_ns) if twin.times_ns else step_ms
    median, without = statistics.median(step_ms), statistics.median(no_sync_ms)
    return {
        "kind": "digits",
        **asdict(options),
        "steps": len(losses),
        "accuracy": accuracy,
        "step_ms": round(median, 4),
        "no_sync_step_ms": round(without, 4),
        "communication_share": round(max(0.0, 1 - without / median), 4),
        "weights_equal_on_all_ranks": all(other == as_numbers for other in gather(as_numbers)),
        "weights_sha256": digest(model.state_dict()),
        "losses": [[loss.hex() for loss in of_rank] for of_rank in gather(losses)],
    }


def print_epoch(epoch: int, losses: list[float], accuracy: float) -> None:
    """A line of the loss curve: mean of rank 0's losses, with a bar on a log scale."""
    mean = statistics.fmean(losses)
    bar = "#" * max(1, round(10 * math.log10(max(mean, 1e-4) / 1e-4)))
    print(f"  epoch {epoch + 1:2d}  loss {mean:.4f}  held out {accuracy:.4f}  {bar}", flush=True)


def print_result(record: dict[str, Any]) -> None:
    """The figures of the run in three lines."""
    print(
        f"  {record['steps']} steps, held-out accuracy {record['accuracy'][-1]:.4f}\n"
        f"  median step {record['step_ms']:.3f} ms, under no_sync() "
        f"{record['no_sync_step_ms']:.3f} ms: {record['communication_share']:.0%} of a step is "
        f"communication\n  weights equal on all ranks: "
        f"{'yes' if record['weights_equal_on_all_ranks'] else 'NO'}, SHA-256 "
        f"{record['weights_sha256'][:16]}...",
        flush=True,
    )


def run_in_group(options: Options) -> dict[str, Any]:
    """Join the group that the environment describes, train, leave it."""
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    record = train(options)
    # Not in a `finally`: after an error the peers may be gone, and the error must get out first.
    dist.destroy_process_group()
    return record


def run_rank(_: Rank, options: Options) -> dict[str, Any]:
    """`run_in_group` for `launch`."""
    return run_in_group(options)


def run(options: Options, timeout_s: float = 300) -> dict[str, Any]:
    """Start the ranks on this machine and train; the record of rank 0."""
    record: dict[str, Any] = launch(run_rank, options.ranks, options, timeout_s=timeout_s)[0]
    return record


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="fastcomm", help="name of the backend (fastcomm)")
    parser.add_argument("--ranks", type=int, default=2, help="processes, if not under torchrun (2)")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--max-steps", type=int, help="stop early")
    parser.add_argument("--out", type=Path, help="write JSON lines to this new file")
    arguments = parser.parse_args(argv)
    options = Options(
        backend=arguments.backend,
        ranks=int(os.environ.get("WORLD_SIZE", arguments.ranks)),
        epochs=arguments.epochs,
        max_steps=arguments.max_steps,
    )
    try:
        record = run_in_group(options) if "RANK" in os.environ else run(options)
    except RankError as error:
        print(f"training failed: {error}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") != "0":
        return 0
    print_result(record)
    if arguments.out:
        with RecordWriter(arguments.out, ["python", "benchmarks/digits.py", *argv]) as writer:
            writer.write(record)
    enough = record["accuracy"][-1] >= TARGET_ACCURACY or options.max_steps is not None
    return 0 if enough and record["weights_equal_on_all_ranks"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
