"""Counterparts of ``torch.nn.parallel`` over fastcomm, for slots of the CPU too.

The names are torch's, with torch's arguments; as there, some of these functions have the names of
the modules that they are in.
"""

from fastcomm.nn.parallel.data_parallel import DataParallel, DataParallelCriterion, data_parallel
from fastcomm.nn.parallel.distributed import DistributedDataParallel
from fastcomm.nn.parallel.parallel_apply import parallel_apply
from fastcomm.nn.parallel.replicate import replicate
from fastcomm.nn.parallel.scatter_gather import gather, scatter

__all__ = [
    "DataParallel",
    "DataParallelCriterion",
    "DistributedDataParallel",
    "data_parallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
]
