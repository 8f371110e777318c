"""A job's records in one file: a tar with each rank's records and a text that says what they are.

``rank-N.records`` has the bytes of rank N's file (`layout`), ``about.json`` what `Saved` holds
besides. Files that `save` writes are packed by gzip, those of FASTCOMM_DUMP
(``csrc/c10d/life/record_dump.cpp``) are not. Such a file may come from anywhere: nothing in it is
believed, and nothing larger than it may be is unpacked.
"""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fastcomm._records import layout
from fastcomm._records.layout import RecordsError
from fastcomm._records.ranks import Rank
from fastcomm._version import __version__

MOST_RANKS = 128  # of one file; each takes some MB of memory
_ABOUT = "about.json"
_ABOUT_BYTES = 1 << 20
_MOST_BYTES = MOST_RANKS * (layout.FILE_BYTES + 1024) + _ABOUT_BYTES + 20 * 1024
_GZIP = b"\x1f\x8b"  # the first bytes of such a file


@dataclass(frozen=True)
class Facts:
    """Facts about a rank beside its records; as the members of `Rank`."""

    rank: int
    pid: int
    state: str
    read_at: int


@dataclass(frozen=True)
class Saved:
    """The content of a file."""

    version: str  # of the fastcomm that wrote it; "" if it does not say
    date: str
    host: str
    why: str
    ranks: tuple[Rank, ...]  # by number


def save(path: str | os.PathLike[str], files: Sequence[tuple[bytes, Facts]], why: str = "") -> None:
    """Write the records of ranks to a file, which appears under its name when it is complete.

    Args:
        path: the file; one that is there is replaced.
        files: of each rank the bytes of its file (`layout.copied`), and what else is known of it.
        why: the reason, for people.

    Raises:
        ValueError: two files are of one rank, or there are more than `MOST_RANKS`.
        OSError: the file cannot be written.
    """
    numbers = {facts.rank for _, facts in files}
    if len(numbers) < len(files) or len(files) > MOST_RANKS:
        raise ValueError(f"a file holds {MOST_RANKS} ranks at most, each of them once")
    about = {
        "version": __version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "why": why,
        "ranks": [asdict(facts) for _, facts in files],
    }
    unfinished = Path(f"{os.fspath(path)}.{os.getpid()}.part")
    try:
        with tarfile.open(unfinished, "w:gz", compresslevel=6) as file:
            _add(file, _ABOUT, json.dumps(about, indent=1).encode())
            for data, facts in files:
                _add(file, _entry(facts.rank), data)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Saved:
    """Read a file that `save` has written.

    Raises:
        RecordsError: it is no such file; the text says why.
        OSError: it cannot be read.
    """
    if os.stat(path).st_size > _MOST_BYTES:
        raise RecordsError(f"{os.fspath(path)}: it has more than {_MOST_BYTES} bytes")
    data = Path(path).read_bytes()
    try:
        with tarfile.open(fileobj=io.BytesIO(_unpacked(data)), mode="r:") as file:
            return _loaded(file, json.loads(_content(file, _ABOUT, 0, _ABOUT_BYTES)))
    except RecordsError as error:
        raise RecordsError(f"{os.fspath(path)}: {error}") from error
    except Exception as error:  # of many kinds, by tarfile, zlib and json
        raise RecordsError(f"{os.fspath(path)}: no saved records: {error!r}") from error


def _unpacked(data: bytes) -> bytes:
    if not data.startswith(_GZIP):
        return data
    whole = zlib.decompressobj(wbits=31)
    unpacked = whole.decompress(data, _MOST_BYTES)
    if not whole.eof:
        raise RecordsError(f"it is cut off, or has more than {_MOST_BYTES} bytes")
    return unpacked


def _add(file: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    file.addfile(info, io.BytesIO(data))


def _entry(rank: int) -> str:
    return f"rank-{rank}.records"


def _content(file: tarfile.TarFile, name: str, least: int, most: int) -> bytes:
    """Return an entry's bytes, of which there are ``least`` to ``most``."""
    try:
        info = file.getmember(name)
    except KeyError:
        raise RecordsError(f"there is no {name} in it") from None
    entry = file.extractfile(info) if info.isreg() else None
    if entry is None:
        raise RecordsError(f"{name} is no file in it")
    if not least <= info.size <= most:
        raise RecordsError(f"{name} has {info.size} bytes, not {least} to {most}")
    data = entry.read(most + 1)
    if not least <= len(data) <= most:
        raise RecordsError(f"{name} has another size than the file says")
    return data


def _loaded(file: tarfile.TarFile, about: dict[str, Any]) -> Saved:
    every = [_facts(each) for each in about["ranks"]]
    if len(every) > MOST_RANKS or len({facts.rank for facts in every}) < len(every):
        raise RecordsError(f"it names more than {MOST_RANKS} ranks, or one of them twice")
    ranks = []
    for facts in sorted(every, key=lambda facts: facts.rank):
        name = _entry(facts.rank)
        data = _content(file, name, layout.FILE_BYTES, layout.FILE_BYTES)
        try:
            snapshot = layout.parse(data)
        except RecordsError as error:
            raise RecordsError(f"{name}: {error}") from error
        ranks.append(Rank(facts.rank, facts.pid, facts.state, facts.read_at, snapshot, data))
    return Saved(
        version=_text(about.get("version", "")),
        date=_text(about["date"]),
        host=_text(about["host"]),
        why=_text(about["why"]),
        ranks=tuple(ranks),
    )


def _facts(about: dict[str, Any]) -> Facts:
    return Facts(
        rank=_number(about["rank"]),
        pid=_number(about["pid"]),
        state=_text(about["state"]),
        read_at=_number(about["read_at"]),
    )


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no number of 63 bits")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return layout.text(value.encode("utf-8", "replace"))
