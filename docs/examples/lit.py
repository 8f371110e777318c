"""Train with Lightning over fastcomm.

torchrun --nproc-per-node 2 docs/examples/lit.py
"""

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    """A linear layer that learns a sum."""

    def __init__(self):
        """Make the layer."""
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch):
        """Return the loss of a batch."""
        x, y = batch
        loss = (self.layer(x) - y).square().mean()
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def on_train_end(self):
        """Print the sum of the weights."""
        weights = self.layer.weight.sum().item()
        print(f"rank {self.global_rank}: {dist.get_backend()}, weights {weights:.6f}")

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


L.seed_everything(0, verbose=False)
x = torch.randn(64, 8)
rows = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
trainer = L.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="fastcomm"),  # this line
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), rows)
