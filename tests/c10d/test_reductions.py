"""Every reduction of every dtype, natively; which do not exist, and what is said then."""

from __future__ import annotations

import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks
from support.reductions import DTYPES, OPS, exists, inputs, op_of, reduced, same

import fastcomm

COUNTS = (67, 1501)  # one-shot, and several blocks of the block size below
SMALL_BLOCKS = {"FASTCOMM_ONE_SHOT_BYTES": "1024", "FASTCOMM_BLOCK_BYTES": "4096"}


@on_ranks(1, 2, 3, 5, environment=SMALL_BLOCKS)
def test_bits_are_those_of_the_reference(world: World) -> None:
    world.init()
    rank, size = world.rank, world.size
    for dtype in DTYPES:
        for count in COUNTS:
            terms = [inputs(dtype, size * count, peer) for peer in range(size)]
            for op in OPS:
                if not exists(op, dtype):
                    continue
                assert fastcomm.explain("all_reduce", terms[0], op=op).native, (dtype, op)
                wanted = reduced(terms, op)
                mine = terms[rank].clone()
                work = dist.all_reduce(mine, op=op_of(op), async_op=op == "max")
                if work is not None:
                    work.wait()
                assert same(mine, wanted, op), (dtype, count, op)
                part = torch.empty(count, dtype=dtype)
                dist.reduce_scatter_tensor(part, terms[rank], op=op_of(op))
                own = slice(rank * count, (rank + 1) * count)
                assert same(part, wanted[own], op), (dtype, count, op)


REFUSED = [
    *(("band", torch.float32, "bits of integers only"), ("bxor", torch.bfloat16, "bits of")),
    *(("avg", torch.bool, "use sum or max"), ("premul_sum", torch.int32, "use sum")),
    *(("premul_sum", torch.bool, "use sum"), ("premul_sum", torch.uint64, "use sum")),
    *(("max", torch.complex64, "complex"), ("product", torch.complex128, "complex")),
    *(("band", torch.complex64, "complex"), ("sum", torch.float8_e4m3fn, "convert the tensor")),
    *(("max", torch.float8_e5m2, "convert the tensor"), ("bor", torch.float16, "bits of")),
    *(("product", torch.float8_e4m3fn, "convert the tensor"), ("bxor", torch.float64, "bits of")),
]


def _refuse(world: World) -> list[Caught]:
    world.init()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # torch refuses some by itself
    told = []
    for op, dtype, _ in REFUSED:
        options = dist.AllreduceOptions()
        options.reduceOp = op_of(op)
        tensor = torch.ones(4).to(dtype)
        told.append(catch(lambda x, o=options: backend.allreduce([x], o), tensor))
        assert torch.equal(tensor.view(torch.uint8), torch.ones(4).to(dtype).view(torch.uint8))
        parts = dist.ReduceScatterOptions()
        parts.reduceOp = op_of(op)
        whole = torch.ones(4 * world.size).to(dtype)
        told.append(
            catch(lambda x, w=whole, o=parts: backend._reduce_scatter_base(x, w, o), tensor)
        )
        assert not fastcomm.explain("all_reduce", tensor, op=op).native, (op, dtype)
        dist.all_reduce(good := torch.ones(1))
        assert good.item() == world.size
    return told


def test_what_is_no_reduction_is_refused_with_the_reason() -> None:
    for told in run_ranks(2, _refuse):
        for (op, dtype, reason), reduce, scatter in zip(
            REFUSED, told[::2], told[1::2], strict=True
        ):
            for caught, name in ((reduce, "all_reduce"), (scatter, "reduce_scatter_tensor")):
                assert caught.kind == "UnsupportedError", caught
                assert "FastcommError" in caught.bases, caught
                title = f"{name}({op}, {str(dtype).removeprefix('torch.')})"
                assert title in caught.text and reason in caught.text, caught
                assert "Nothing was sent" in caught.text, caught
