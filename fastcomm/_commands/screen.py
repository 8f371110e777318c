"""A terminal whose screen shows one text, which changes, and is as it was before at the end."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import textwrap
import time
import tty
from types import FrameType, TracebackType

_ENTER = "\x1b[?1049h\x1b[?25l"  # the other screen; no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """For a ``with`` statement. SIGTERM leaves the screen, too."""

    def __enter__(self) -> Screen:
        self._keys: int | None = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before = signal.signal(signal.SIGTERM, _end)
        if self._keys is not None:
            self._mode = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)  # keys come at once, and are not shown
        sys.stdout.write(_ENTER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        if self._keys is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._mode)
        signal.signal(signal.SIGTERM, self._before)

    def show(self, text: str) -> None:
        """Show as much of a text as the screen holds. Rows of tables are cut, others folded.

        The text must have no tabs and no commands.
        """
        size = os.get_terminal_size(sys.stdout.fileno())
        width, height = size.columns or 80, size.lines or 24  # some terminals do not say
        lines: list[str] = []
        for line in text.split("\n"):
            is_row = not line or line.startswith(" ")
            lines += [line[:width]] if is_row else textwrap.wrap(line, width)
        shown = "\n".join(line + _CLEAR_LINE for line in lines[:height])
        sys.stdout.write(_HOME + shown + _CLEAR_REST)
        sys.stdout.flush()

    def wait(self, seconds: float) -> bool:
        """Wait that long, or until the key q; tell whether it came."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._keys is None:
                time.sleep(left)
            elif select.select([self._keys], [], [], left)[0]:
                keys = os.read(self._keys, 64)
                if not keys or b"q" in keys.lower():  # nothing: the terminal has gone
                    return True
        return False


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
