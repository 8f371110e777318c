"""One case for each operation: its buffers, the call, an exact check, and how bytes are counted.

Sizes and bus bandwidth follow nccl-tests (its ``doc/PERFORMANCE.md``): algorithm bandwidth is
size / time, bus bandwidth is that times a factor which makes figures comparable between numbers of
ranks n, because it counts what a link has to carry at least:

* all_reduce in all forms, fused_all_reduce: 2(n-1)/n; size is the buffers of one rank;
* all_gather in all forms, gather: (n-1)/n; size is what a rank ends up with, the parts of all
  ranks;
* reduce_scatter in all forms, scatter, all_to_all in both: (n-1)/n; size is what a rank gives,
  parts for all ranks;
* broadcast, reduce, send_recv, send_recv_stream: 1; size is the buffer;
* barrier, new_group, new_group_x100: move no data.

Values are whole numbers small enough for every sum to be exact in the dtype, so a check compares
for equality and counts the wrong elements.
"""

from __future__ import annotations

from fastcomm._measure.cases.base import REDUCTIONS, Case, pattern, pattern_sum
from fastcomm._measure.cases.coalesced import (
    AllGatherCoalesced,
    AllGatherIntoTensorCoalesced,
    AllReduceCoalesced,
    ReduceScatterTensorCoalesced,
)
from fastcomm._measure.cases.copies import (
    AllGather,
    AllGatherIntoTensor,
    AllGatherIntoTensorInPlace,
    AllToAll,
    AllToAllSingle,
    Broadcast,
    Gather,
    Scatter,
)
from fastcomm._measure.cases.fused import FusedAllReduce
from fastcomm._measure.cases.groups import Barrier, NewGroup, NewGroups
from fastcomm._measure.cases.messages import PingPong, Stream
from fastcomm._measure.cases.overlapped import AllReduceAsync, AllReduceOverlapped
from fastcomm._measure.cases.reductions import (
    AllReduce,
    AllReduceShared,
    Reduce,
    ReduceScatter,
    ReduceScatterTensor,
    ReduceScatterTensorInPlace,
)

__all__ = ["CASES", "REDUCTIONS", "Case", "pattern", "pattern_sum"]

CASES: dict[str, type[Case]] = {
    case.name: case
    for case in (
        AllReduce,
        AllReduceShared,
        AllReduceAsync,
        AllReduceOverlapped,
        FusedAllReduce,
        Broadcast,
        Reduce,
        AllGather,
        AllGatherIntoTensor,
        AllGatherIntoTensorInPlace,
        Gather,
        Scatter,
        ReduceScatter,
        ReduceScatterTensor,
        ReduceScatterTensorInPlace,
        AllToAll,
        AllToAllSingle,
        AllReduceCoalesced,
        AllGatherCoalesced,
        AllGatherIntoTensorCoalesced,
        ReduceScatterTensorCoalesced,
        PingPong,
        Stream,
        Barrier,
        NewGroup,
        NewGroups,
    )
}
