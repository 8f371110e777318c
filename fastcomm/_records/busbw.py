"""The bytes that bus bandwidth counts, as benchmarks/README.md defines it."""

from __future__ import annotations

_GATHERS = (
    *("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "gather", "scatter"),
    *("all_gather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_tensor"),
    "reduce_scatter_tensor_coalesced",
)
_EXCHANGES = ("all_to_all", "all_to_all_single")
_ONE_WAY = ("broadcast", "reduce")
OPERATIONS = (
    *("all_reduce", "all_reduce_coalesced", "fused_all_reduce"),
    *(*_GATHERS, *_EXCHANGES, *_ONE_WAY),
)


def factor(operation: str, size: int) -> float:
    """Return what the size of one of ``OPERATIONS`` is multiplied by, among ``size`` ranks."""
    if operation in _ONE_WAY:
        return 1.0
    share = (size - 1) / size
    return share if operation in _GATHERS + _EXCHANGES else 2 * share


def bus_bytes(operation: str, message: int, size: int) -> float | None:
    """Return the bytes of busbw of a collective among ``size`` ranks.

    Args:
        operation: its name.
        message: bytes of one rank's message, as records count them: of a gather, what one rank
            gives; of a scatter, what one rank gets; of an exchange, what one rank gives in all.
        size: the number of ranks.

    Returns:
        The bytes; None if there are none, or the operation has no busbw.
    """
    if message == 0 or operation not in OPERATIONS:
        return None
    parts = size if operation in _GATHERS else 1
    return message * parts * factor(operation, size)
