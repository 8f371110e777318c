"""scikit-learn's handwritten digits: 1,797 real images of 8x8 that come with the package.

Split and order depend on seeds only, so they are the same on every rank and for every backend.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SPLIT_SEED = 20
HELD_OUT = 360


@dataclass(frozen=True)
class Split:
    """Images are float32 of shape (n, 1, 8, 8) in [0, 1], labels int64 of shape (n,)."""

    images: torch.Tensor
    labels: torch.Tensor


def load_split() -> tuple[Split, Split]:
    """The training set (1,437 images) and the held-out set (360)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div_(16).unsqueeze_(1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    held_out, train = order[:HELD_OUT], order[HELD_OUT:]
    return Split(images[train], labels[train]), Split(images[held_out], labels[held_out])


def batches(epoch: int, count: int, batch: int, rank: int, size: int) -> list[torch.Tensor]:
    """Indices of the batches of ``rank`` in ``epoch``: every rank gets as many, of equal size.

    The epoch's permutation is dealt out in turn, as ``DistributedSampler`` does; what does not fill
    a batch on every rank is left out.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 + epoch))
    mine = order[rank::size]
    full = count // size // batch
    return [mine[index * batch : (index + 1) * batch] for index in range(full)]
