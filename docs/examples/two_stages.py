"""A model over two devices, with micro-batches that overlap, and replicas of each stage.

    python docs/examples/two_stages.py
    torchrun --nproc-per-node 2 docs/examples/two_stages.py

No wrapper is needed: a stage runs ahead in a thread of its own, so while the second stage has one
micro-batch the first has the next. Each stage may be a `DataParallel`, whose results go to
any device, here to where the next stage begins; and the whole may be trained by
DistributedDataParallel, one process for each such pair of stages. The backward pass needs nothing:
autograd runs each device's part in a thread of its own, too (on the CPU one after the other).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fastcomm


class TwoStages(nn.Module):
    """``second(first(x))``, in micro-batches: one is in each stage at a time.

    Args:
        first: on one device, or several; gives its results where ``second`` begins.
        second: likewise.
        micro_batches: how many parts of a batch.
    """

    def __init__(self, first: nn.Module, second: nn.Module, micro_batches: int) -> None:
        super().__init__()
        self.first, self.second, self.micro_batches = first, second, micro_batches

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with closing(self._ahead(x)) as results:
            return torch.cat([self.second(result) for result in results])

    def _ahead(self, x: torch.Tensor) -> Generator[torch.Tensor, None, None]:
        """Yield the first stage's results; it runs one micro-batch ahead.

        Its thread has ended when the last one is taken, or the generator is closed: a thread that
        is in torch when the interpreter ends aborts the process.
        """
        with_grad = torch.is_grad_enabled()

        def run(part: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(with_grad):
                return self.first(part)

        with ThreadPoolExecutor(1) as thread:
            results: deque[Future[torch.Tensor]] = deque()
            for part in x.chunk(self.micro_batches):
                results.append(thread.submit(run, part))
                if len(results) > 1:
                    yield results.popleft().result()
            yield results.popleft().result()


def devices() -> tuple[list[str], list[str]]:
    """Return the devices of the two stages: GPUs, two for each, or the CPU."""
    if torch.cuda.device_count() >= 4:
        return ["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]
    return ["cpu", "cpu"], ["cpu", "cpu"]


def build() -> tuple[TwoStages, nn.Sequential]:
    """Return the model in stages, and the same layers in one piece."""
    torch.manual_seed(0)
    here, there = devices()
    first = nn.Sequential(nn.Linear(16, 64), nn.Tanh()).to(here[0])
    second = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(there[0])
    stages = TwoStages(
        fastcomm.nn.parallel.DataParallel(first, here, output_device=there[0]),
        fastcomm.nn.parallel.DataParallel(second, there),
        micro_batches=4,
    )
    return stages, nn.Sequential(first, second)


def main() -> None:
    """Train for some steps."""
    model, _ = build()
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("fastcomm")
    trained: nn.Module = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    here, there = devices()
    rank = dist.get_rank() if distributed else 0
    torch.manual_seed(1 + rank)
    for step in range(40):
        x = torch.randn(64, 16, device=here[0])
        y = (x.sum(1, keepdim=True) / 4).to(there[0])
        loss = nn.functional.mse_loss(trained(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"rank {rank}, step {step + 1}: loss {loss.item():.4f}")
    print(f"rank {rank}: sum of weights {sum(p.sum().item() for p in model.parameters()):.6f}")
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
