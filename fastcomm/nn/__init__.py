"""Counterparts of ``torch.nn`` over fastcomm: ``DataParallel``, and `fastcomm.nn.parallel`."""

from fastcomm.nn import parallel
from fastcomm.nn.parallel import DataParallel

__all__ = ["DataParallel", "parallel"]
