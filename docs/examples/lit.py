"""Train with Lightning over fastcomm.

    torchrun --nproc-per-node 2 docs/examples/lit.py

Lightning forms the group; its strategy has the name.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    """A linear layer that learns a sum."""

    def __init__(self) -> None:
        """Make the layer."""
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        loss: torch.Tensor = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def on_train_end(self) -> None:
        """Print the sum of the weights."""
        weights = self.layer.weight.sum()
        print(f"rank {self.global_rank}: {dist.get_backend()}, weights {weights:.6f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


L.seed_everything(0, verbose=False)
x = torch.randn(64, 8)
rows = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
strategy = DDPStrategy(process_group_backend="fastcomm")  # this line
quiet: Any = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = L.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, **quiet)
trainer.fit(Model(), rows)
