"""``fastcomm.explain``: the path that an operation takes, and the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from fastcomm import _native
from fastcomm._distributed import backend as _backend
from fastcomm._distributed import device_engines as _device_engines
from fastcomm._distributed.memory import is_shared


@dataclass(frozen=True)
class Explanation:
    """The router's choice for one call; ``str()`` is a sentence.

    Attributes:
        operation: name of the operation, as in ``torch.distributed``.
        native: True where fastcomm moves the data itself, False where another backend does or
            nothing can.
        algorithm: ``"one-shot"``, ``"pipelined"``, ``"by table"``, ``"flags"``, ``"ring"``,
            ``"composed"`` (over several hosts) or ``"nothing"``. Without a native path: the name of
            another torch backend (``"gloo"``, which serves all that is not composed in a group over
            several hosts; ``"nccl"``, which serves tensors on its devices), or ``"refused"``, as
            for a reduction that is not defined for a type.
        bytes: size of one rank's message.
        reason: the reason for the choice, in words.
    """

    operation: str
    native: bool
    algorithm: str
    bytes: int
    reason: str

    def __str__(self) -> str:
        other = {"gloo": "Gloo", "nccl": "NCCL"}.get(self.algorithm, self.algorithm)
        path = f"native, {self.algorithm}" if self.native else other
        return f"{self.operation} of {self.bytes} bytes: {path} ({self.reason})"


def explain(
    operation: str,
    tensor: torch.Tensor | None = None,
    *,
    op: dist.ReduceOp.RedOpType | str = "sum",
    group: dist.ProcessGroup | None = None,
    count: int | None = None,
    dtype: torch.dtype = torch.float32,
    world_size: int | None = None,
) -> Explanation:
    """Tell which path a call of ``torch.distributed.<operation>`` takes, and why.

    Nothing is sent, and no other rank is needed. Every rank gets the same answer, except for the
    end of the reason for a large message: it tells if this rank's tensor is used in place.

    Args:
        operation: a name of ``torch.distributed``, as ``"all_reduce"``, or ``"fused_all_reduce"``
            and the like.
        tensor: this rank's message, of any shape; gives ``count`` and ``dtype``.
        op: the reduction, for operations that reduce.
        group: a process group of backend fastcomm. None is the default group if there is one, and
            else a group of ``world_size`` ranks as this machine and environment would form it.
        count: elements, where no tensor is given (default 1).
        dtype: element type, where no tensor is given.
        world_size: ranks of the imagined group (default 2); if given, ``group`` is ignored.

    Raises:
        ValueError: the group is not of backend fastcomm.
    """
    elements = count if count is not None else 1
    place = torch.device("cpu")
    if tensor is not None:
        elements, dtype, place = tensor.numel(), tensor.dtype, tensor.device
    device = place.type
    reduction = _reduction_name(op)
    name = _dtype_name(dtype)
    if dtype.is_complex and reduction in _LINEAR:
        elements, name = 2 * elements, _dtype_name(dtype.to_real())
    if name == "bytes":
        elements *= dtype.itemsize
    if world_size is None and (group is not None or dist.is_initialized()):
        backend = _backend.backend_of(group, behind_checks=True)
        if backend is None:
            raise ValueError("explain() needs a process group of backend fastcomm")
        answer = backend.explain(str(place), operation, elements, name, reduction)
        decided = answer is not None  # None: the group has not met such a device yet
        if answer is None:
            answer = backend.explain("cpu", operation, elements, name, reduction)
            assert answer is not None
    else:
        answer = _native.load().explain(world_size or 2, operation, elements, name, reduction)
        decided = False
    on_device = answer["on_device"]
    explanation = Explanation(
        operation, answer["native"], answer["algorithm"], answer["bytes"], answer["reason"]
    )
    if device not in ("cpu", "meta") and not on_device:
        reason = explanation.reason
        if explanation.native:
            reason += f"; copied from and to {device} through the host's memory"
        if not decided and (other := _device_engines.name_of(device)) is not None:
            reason += f", unless the first collective finds that {other} serves every rank"
        explanation = replace(explanation, reason=reason)
    if dtype.is_complex and "reduction of bytes" in explanation.reason:
        reason = "complex numbers have sum, avg and premul_sum only"
        explanation = replace(explanation, reason=reason)
    if tensor is not None and _may_be_staged(explanation, on_device, reduction, dtype):
        way = "is used where it lies" if is_shared(tensor) else "is staged"
        return replace(explanation, reason=f"{explanation.reason}; this rank's tensor {way}")
    if tensor is None or on_device or "in place where" not in explanation.reason:
        return explanation
    lies = "does" if is_shared(tensor) else "does not"
    return replace(explanation, reason=f"{explanation.reason}; this rank's tensor {lies}")


def _may_be_staged(
    explanation: Explanation, on_device: bool, reduction: str, dtype: torch.dtype
) -> bool:
    """Tell whether an operation on devices uses tensors in place where their memory allows it.

    Copies and sums of several launches do.
    """
    sums = reduction in _SUMS and dtype not in (torch.uint16, torch.uint32, torch.uint64)
    suits = sums if explanation.operation.startswith(("all_reduce", "reduce")) else True
    several = explanation.native and explanation.algorithm == "pipelined"
    always_staged = ("gather_shards", "all_to_all", "all_to_all_single")
    return on_device and several and suits and explanation.operation not in always_staged


_NATIVE_DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
}
_SUMS = ("sum", "avg")
# Reductions that treat complex numbers as pairs of real ones. Others do not take complex numbers.
_LINEAR = ("sum", "avg", "premul_sum")


def _dtype_name(dtype: torch.dtype) -> str:
    return _NATIVE_DTYPES.get(dtype, "bytes")


def _reduction_name(op: dist.ReduceOp.RedOpType | str) -> str:
    return (op if isinstance(op, str) else str(op).rsplit(".", 1)[-1]).lower()
