"""torch's flight recorder, on demand."""

from __future__ import annotations

import os
from pathlib import Path

from fastcomm import _native, errors


def dump_flight_recorder(
    file: str | os.PathLike[str] | None = None, *, only_active: bool = False
) -> Path:
    """Write the latest calls of this process to a file that ``torchfrtrace`` reads.

    torch's variables turn the recorder on, and name the file: see docs/tools.md.

    Args:
        file: a name; by default that of dumps on failure, ``$TORCH_FR_DUMP_TEMP_FILE`` and the rank
            behind it.
        only_active: with ``file``, leave out calls that have ended.

    Returns:
        The file.

    Raises:
        UnsupportedError: nothing is recorded.
    """
    native = _native.load()
    if file is not None:
        dump = native.flight_recorder_dump(True, only_active)
        if dump is not None:
            path = Path(file)
            path.write_bytes(dump)
            return path
    else:
        written = native.write_flight_recorder()
        if written is not None:
            return Path(written)
    raise errors.UnsupportedError(
        "the flight recorder is off: set TORCH_FR_BUFFER_SIZE=2000 before the first process group "
        "is formed; it records the calls of groups that are formed then"
    )
