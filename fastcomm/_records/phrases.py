"""Words for calls, ranks, times and sizes, as reports say them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastcomm._records.snapshot import Call


def call_text(call: Call) -> str:
    """Return a call with its arguments and its number in the group."""
    parts = []
    if call.count:
        parts += [call.dtype, f"{call.count} element" + "s" * (call.count != 1)]
    if call.is_message:
        way = "from" if call.operation.startswith("recv") else "to"
        parts.append(f"{way} " + ("any rank" if call.peer is None else f"rank {call.peer}"))
    text = f"{call.operation}({', '.join(parts)})"
    if call.sequence is not None and not call.is_message:
        text += f", sequence {call.sequence}"
    if call.lane:
        text += f", lane {call.lane}"
    return text


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each unbroken run."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def gaps(numbers: Iterable[int], size: int) -> list[tuple[int, int]]:
    """Return the runs of what is missing among 0 to ``size`` - 1."""
    found = []
    begin = 0
    for first, last in [*ranges(numbers), (size, size)]:
        if begin < first:
            found.append((begin, first - 1))
        begin = last + 1
    return found


def runs_text(runs: Sequence[tuple[int, int]]) -> str:
    """Return runs of numbers as text: "0, 2-5"."""
    texts = []
    for first, last in runs:
        if last - first < 2:
            texts += [str(number) for number in range(first, last + 1)]
        else:
            texts.append(f"{first}-{last}")
    return ", ".join(texts)


def ranks_text(runs: Sequence[tuple[int, int]]) -> str:
    """Return runs of ranks as text: "rank 2", "ranks 0, 2-5"."""
    is_one = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"rank{'' if is_one else 's'} {runs_text(runs)}"


def seconds_text(seconds: float) -> str:
    """Return a time as text: "12.3 s", "1 h 2 min"."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def bytes_text(number: float) -> str:
    """Return a number of bytes as text: "1.2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
