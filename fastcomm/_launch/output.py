"""The output of ranks, forwarded to this process's own where that is no file descriptor 1 or 2."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from typing import TextIO

_CHUNK = 1 << 16


class Output:
    """One stream of one rank.

    Its lines are written by the thread that calls `forward`, a whole line at a time, so that lines
    of ranks do not mix; a notebook shows them below the cell of that thread.

    Attributes:
        inner: the descriptor for the rank, to be closed once it has started.
    """

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._outer: int | None
        self._outer, self.inner = os.pipe()
        os.set_blocking(self._outer, False)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        assert self._outer is not None
        return self._outer

    @property
    def is_open(self) -> bool:
        """Whether something may still come."""
        return self._outer is not None

    def forward(self) -> None:
        """Write the whole lines that are there; does not block on the rank."""
        while self._outer is not None:
            try:
                data = os.read(self._outer, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            text = self._rest + self._decoder.decode(data)
            # A progress bar ends with a carriage return, not with a line.
            whole = max(text.rfind("\n"), text.rfind("\r")) + 1
            self._rest = text[whole:]
            self._write(text[:whole])

    def close(self) -> None:
        """Write what is left, and close."""
        if self._outer is None:
            return
        os.close(self._outer)
        self._outer = None
        text = self._rest + self._decoder.decode(b"", True)
        self._write(re.sub(r"(?<=[^\r\n])$", "\n", text))

    def _write(self, text: str) -> None:
        if text:
            with contextlib.suppress(ValueError):  # the target is closed
                self._target.write(text)
                self._target.flush()


def target(name: str, descriptor: int) -> TextIO | None:
    """Return the stream to forward to, or None where ranks may inherit the descriptor.

    Args:
        name: ``"stdout"`` or ``"stderr"``.
        descriptor: its usual descriptor, 1 or 2.
    """
    stream: TextIO | None = getattr(sys, name)
    if stream is None:
        return None
    try:
        return None if stream.fileno() == descriptor else stream
    except (AttributeError, OSError, ValueError):
        return stream
