"""torch's flight recorder in tests: what it holds, and what torch's analyser says of dumps."""

from __future__ import annotations

import argparse
import gc
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

import fastcomm

ON = {"TORCH_FR_BUFFER_SIZE": "200"}
VARIABLES = [
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
]


def dump() -> dict[str, Any]:
    """Return what the recorder of this process holds."""
    pickled = fastcomm._C.flight_recorder_dump(False, False)
    assert pickled is not None
    found: dict[str, Any] = pickle.loads(pickled)
    return found


def analysed(folder: Path, incomplete: bool = False) -> tuple[Any, str]:
    """Return the data base and the words of torch's analyser (torchfrtrace)."""
    builder = pytest.importorskip(
        "torch.distributed.flight_recorder.components.builder", reason="no analyser in this torch"
    )
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    words: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())

    logger, listener = builder.logger.logger, Listener()
    logger.addHandler(listener)
    flags = ["--allow-incomplete-ranks"] if incomplete else []
    try:
        args: argparse.Namespace = JobConfig().parse_args([str(folder), "-p", "rank_", *flags])
        details, version = read_dir(args)
        return builder.build_db(details, args, version), "\n".join(words)
    finally:
        gc.enable()  # read_dir leaves it off
        logger.removeHandler(listener)
