"""Lists of tensors copied and summed: who does it, and how it is divided among threads."""

from __future__ import annotations

import subprocess
import sys

import torch

from fastcomm import _native

PROGRAM = """
import os
import torch
from fastcomm import comm

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(1)
values = [torch.zeros(1 << 20)]
before = threads()
torch.set_num_threads(4)
comm.{call}
print(threads() - before)
"""


def _threads_of(call: str) -> int:
    command = [sys.executable, "-c", PROGRAM.format(call=call)]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def test_large_lists_are_divided_among_torchs_threads() -> None:
    assert _threads_of("reduce_add_coalesced([values, values])") == 3
    assert _threads_of("broadcast_coalesced(values, ['cpu', 'cpu'])") == 3


def test_lists_that_are_on_no_device_are_left_to_others() -> None:
    native = _native.load()
    values = [torch.ones(3)]
    assert native.sum_lists([values, values], 0) is None
    assert native.copy_lists(values, [0, 1]) is None
    assert native.copy_lists(values, [-1, 0]) is None
    assert native.refresh_device_lists(values, [0, 1], [])[1] is None
