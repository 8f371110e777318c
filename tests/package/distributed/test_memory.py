"""fastcomm.empty without a process group: shape and memory of what it returns, and who owns it."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import logging
import os
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.caught import catch
from support.on_ranks import on_ranks
from support.ranks import World
from support.segment import backed_bytes

import fastcomm

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ((), ()),
        (([],), ()),
        ((5,), (5,)),
        ((2, 3), (2, 3)),
        (([2, 3],), (2, 3)),
        (((4, 1, 2),), (4, 1, 2)),
        ((torch.Size([7, 2]),), (7, 2)),
        ((np.int64(3), torch.tensor(2)), (3, 2)),
        ((0,), (0,)),
        ((3, 0, 5), (3, 0, 5)),
        ((70_001,), (70_001,)),
    ],
)
def test_a_size_is_taken_as_torch_takes_it(size: tuple, shape: tuple[int, ...]) -> None:
    tensor = fastcomm.empty(*size)
    plain = torch.empty(shape)
    assert tensor.shape == plain.shape
    assert tensor.stride() == plain.stride() and tensor.is_contiguous()
    assert tensor.storage_offset() == 0
    assert tensor.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
    assert tensor.data_ptr() % 4096 == 0
    assert fastcomm.is_shared(tensor) and not fastcomm.is_shared(plain)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2),
        *(torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64, torch.complex128),
    ],
)
def test_a_type_may_be_given(dtype: torch.dtype) -> None:
    tensor = fastcomm.empty(3, 5, dtype=dtype)
    assert tensor.dtype == dtype and tensor.device.type == "cpu"
    assert tensor.untyped_storage().nbytes() == 15 * dtype.itemsize


def test_without_a_type_it_is_the_default_one() -> None:
    assert fastcomm.empty(2).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert fastcomm.empty(2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_quantized_type_is_refused() -> None:
    with pytest.raises(fastcomm.FastcommError, match="QUInt8"):
        fastcomm.empty(2, dtype=torch.quint8)


def test_tensors_do_not_overlap() -> None:
    tensors = [fastcomm.empty(count, dtype=torch.uint8) for count in (0, 1, 4096, 4097, 3, 0, 9)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    for number, tensor in enumerate(tensors):
        assert tensor.eq(number).all()


@pytest.mark.parametrize(
    ("view", "shared"),
    [
        (lambda t: t[3:], True),
        (lambda t: t[1:10:3], True),
        (lambda t: t.view(3, 4).t(), True),
        (lambda t: t.view(torch.int32), True),
        (lambda t: t.expand(2, 12), True),
        (lambda t: t.detach(), True),
        (lambda t: torch.nn.Parameter(t), True),
        (lambda t: torch.from_numpy(t.numpy()), True),
        (lambda t: torch.empty(0).set_(t), True),
        (lambda t: t[12:], True),  # no elements, but its memory
        (lambda t: t.clone(), False),
        (lambda t: t + 1, False),
        (lambda t: t.double(), False),
        (lambda t: torch.empty_like(t), False),
    ],
)
def test_views_are_shared_and_copies_are_not(
    view: Callable[[torch.Tensor], torch.Tensor], shared: bool
) -> None:
    assert fastcomm.is_shared(view(fastcomm.empty(12))) == shared


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3),
        lambda: torch.empty(0),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3).to_mkldnn(),
        lambda: torch.ones(3).share_memory_(),
    ],
)
def test_what_others_made_is_not_shared(make: Callable[[], torch.Tensor]) -> None:
    assert fastcomm.is_shared(fastcomm.empty(1))  # no short cut: there is shared memory
    assert not fastcomm.is_shared(make())


@on_ranks(1)
def test_is_shared_may_be_the_first_call(world: World) -> None:
    assert not fastcomm.is_shared(torch.ones(3))


def test_autograd_works_on_it() -> None:
    weight = fastcomm.empty(3, 4, requires_grad=True)
    assert weight.requires_grad and weight.is_leaf
    assert not fastcomm.empty(3).requires_grad
    with torch.no_grad():
        weight.copy_(torch.arange(12.0).view(3, 4))
    gradient = fastcomm.empty(3, 4).zero_()
    weight.grad = gradient
    (weight.square().sum() / 2).backward()
    assert torch.equal(gradient, torch.arange(12.0).view(3, 4))  # accumulated in place
    torch.optim.SGD([weight], lr=1.0).step()
    assert weight.eq(0).all() and fastcomm.is_shared(weight)


def _through_pickle(tensor: torch.Tensor) -> torch.Tensor:
    copied: torch.Tensor = pickle.loads(pickle.dumps(tensor))
    return copied


def _through_save(tensor: torch.Tensor) -> torch.Tensor:
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    loaded: torch.Tensor = torch.load(buffer)
    return loaded


@pytest.mark.parametrize("duplicate", [copy.deepcopy, _through_pickle, _through_save])
def test_a_copy_is_an_ordinary_tensor(duplicate: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = fastcomm.empty(1000).copy_(torch.arange(1000.0))
    copied = duplicate(tensor[1:].requires_grad_())
    tensor.zero_()
    assert torch.equal(copied, torch.arange(1.0, 1000.0)) and copied.requires_grad
    assert not fastcomm.is_shared(copied)


def test_share_memory_moves_it_to_the_memory_of_torch() -> None:
    tensor = fastcomm.empty(100).fill_(3)
    assert not tensor.is_shared()  # torch's notion, for torch.multiprocessing
    tensor.share_memory_()
    assert tensor.is_shared() and not fastcomm.is_shared(tensor)
    assert tensor.eq(3).all()


def test_it_grows_into_ordinary_memory() -> None:
    tensor = fastcomm.empty(10).fill_(1)
    assert fastcomm.is_shared(tensor.resize_(6))
    tensor.resize_(5000)
    assert not fastcomm.is_shared(tensor)
    assert tensor[:6].eq(1).all()


@pytest.mark.parametrize("size", [(-1,), ([2, -3],), (0, -1)])
def test_a_negative_size_is_an_error(size: tuple) -> None:
    with pytest.raises(ValueError, match="negative size"):
        fastcomm.empty(*size)


@pytest.mark.parametrize(
    "size",
    [
        (1 << 50,),
        (1 << 62,),
        ((1 << 63) - 1,),
        (1 << 32, 1 << 32),
        ((1 << 32) - 1, (1 << 32) + 1),  # 2^64 - 1 bytes: one page more wraps
        ((1 << 40) - 1, 1 << 24),
    ],
)
def test_an_absurd_size_is_an_error(size: tuple[int, ...]) -> None:
    with pytest.raises(fastcomm.FastcommError):
        fastcomm.empty(size, dtype=torch.uint8)
    assert fastcomm.empty(3).fill_(1).sum() == 3


@pytest.mark.parametrize("size", [(2.5,), ("ab",), ([2], [3]), (None,)])
def test_what_is_no_size_is_a_type_error(size: tuple) -> None:
    with pytest.raises(TypeError):
        fastcomm.empty(*size)


SMALL_SEGMENTS = {
    transport: {"FASTCOMM_SEGMENT_MB": "64", "FASTCOMM_TRANSPORT": transport}
    for transport in ("memfd", "posix")
}


@on_ranks(1, environments=SMALL_SEGMENTS)
def test_freed_memory_is_used_again_and_a_full_segment_is_an_error(world: World) -> None:
    kept = fastcomm.empty(100).fill_(7)
    before = backed_bytes()
    for number in range(10):
        tensor = fastcomm.empty(40 * MIB, dtype=torch.uint8)
        assert tensor.count_nonzero() == 0
        tensor.fill_(number + 1)
        assert backed_bytes() == before + 40 * MIB
        part = tensor[-2:]
        del tensor
        assert backed_bytes() == before + 40 * MIB and part.eq(number + 1).all()
        del part
        assert backed_bytes() == before
    full = [fastcomm.empty(20 * MIB, dtype=torch.uint8) for _ in range(3)]
    told = [catch(fastcomm.empty, 20 * MIB, dtype=torch.uint8)]
    del full[1]  # in the middle
    full.append(fastcomm.empty(20 * MIB, dtype=torch.uint8))
    told.append(catch(fastcomm.empty, 65 * MIB, dtype=torch.uint8))
    assert kept.eq(7).all()
    for caught in told:
        assert {"FastcommError", "OSError"} <= set(caught.bases), caught
        assert "64 MiB" in caught.text and "raise FASTCOMM_SEGMENT_MB" in caught.text


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname}: {record.getMessage()}")


@on_ranks(1, environment={"FASTCOMM_TRANSPORT": "gloo"})
def test_without_shared_memory_it_is_ordinary_and_one_warning_says_why(world: World) -> None:
    records = _Records()
    logging.getLogger("fastcomm").addHandler(records)
    weight = fastcomm.empty(2, 3, dtype=torch.float64, requires_grad=True)
    assert weight.shape == (2, 3) and weight.dtype == torch.float64 and weight.requires_grad
    tensors = [weight, fastcomm.empty(), fastcomm.empty([4]), fastcomm.empty(0)]
    assert [tensor.shape for tensor in tensors[1:]] == [(), (4,), (0,)]
    assert not any(fastcomm.is_shared(tensor) for tensor in tensors)
    assert fastcomm.empty(2, out=tensors[2]) is tensors[2]  # what it made, it takes again
    assert "ValueError" in catch(fastcomm.empty, -1).bases  # a negative size, as elsewhere
    warning = "WARNING: fastcomm.empty returns ordinary memory: FASTCOMM_TRANSPORT=gloo"
    assert records.texts == [warning]


def _in_a_child(function: Callable[[], bool]) -> int:
    """Run in a forked child that ends with a full interpreter shutdown: 0 if it returned True."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if function() else 1
        finally:
            ctypes.pythonapi.Py_Exit(status)
    return os.waitpid(child, 0)[1]


@on_ranks(1)
def test_a_forked_child_shares_it_and_frees_nothing(world: World) -> None:
    holder = [fastcomm.empty(5000).fill_(3)]
    tensor, where = holder[0], holder[0].data_ptr()
    used = backed_bytes()

    def read() -> bool:
        return fastcomm.is_shared(tensor) and bool(tensor.eq(3).all())

    def free() -> bool:
        nonlocal tensor
        holder.clear()
        del tensor
        return gc.collect() >= 0

    def write() -> bool:
        return bool(tensor.fill_(4).eq(4).all())

    ended = {"read": _in_a_child(read), "free": _in_a_child(free)}
    assert tensor.eq(3).all() and backed_bytes() == used
    other = fastcomm.empty(5000).fill_(9)
    assert not where <= other.data_ptr() < where + tensor.nbytes
    ended["write"] = _in_a_child(write)
    assert tensor.eq(4).all() and other.eq(9).all()
    assert ended == {"read": 0, "free": 0, "write": 0}


@on_ranks(1)
def test_a_forked_child_gets_ordinary_memory(world: World) -> None:
    tensor = fastcomm.empty(5000).fill_(3)

    def allocate() -> bool:
        mine = fastcomm.empty(5000).fill_(1)
        return not fastcomm.is_shared(mine) and bool(mine.eq(1).all())

    assert _in_a_child(allocate) == 0
    assert tensor.eq(3).all() and fastcomm.empty(5000).count_nonzero() == 0


def test_out_is_used_again() -> None:
    first = fastcomm.empty(1000, dtype=torch.float64)
    again = fastcomm.empty(10, 20, out=first)
    assert again is first and again.shape == (10, 20) and fastcomm.is_shared(again)
    assert fastcomm.empty([1000], out=first, device="cpu").numel() == 1000
    for out, size, options, said in (
        (torch.empty(10), 10, {}, "does not lie in memory of fastcomm.empty"),
        (first, 1001, {}, "too few"),
        (first, 10, {"dtype": torch.float32}, "of torch.float64"),
        (first, 10, {"device": "meta"}, "on cpu"),
    ):
        with pytest.raises(ValueError, match=said):
            fastcomm.empty(size, out=out, **options)
