"""What runs on the shim is what runs on CUDA: only here is it listed where the two differ.

`tests/shim/` has the shim. Of the sources in `csrc/` these alone ask whether they are compiled for
it; that something is compiled for CUDA or for the shim, and not without either, is not
a difference between the two.
"""

from __future__ import annotations

import re
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "csrc"

# What differs, and how many times.
DIFFERENCES = {
    # Where the runtime, the driver and torch's device come from.
    "core/cuda_host.h": 4,  # the runtime; what a kernel finds at an address, and reports using
    "core/cuda_context.cpp": 1,  # whether a device has a context
    "core/cuda_driver.h": 2,  # the driver's types
    "core/cuda_driver.cpp": 2,  # its functions, and the names of its errors
    "kernels/cuda_api.h": 1,  # launches, __global__ and its like
    "tensors/accelerator.h": 2,  # the type of device that tensors are on
    # What flags and memory are: the shim looks at their order.
    "core/hd.h": 3,
    "core/touches.h": 1,
    # Sizes: a host thread for each device thread, so blocks and grids are small.
    "kernels/cuda/chunks.h": 1,
    "kernels/cuda/gradient_norm.cu": 1,
    "engines/cuda/meeting.cu": 1,
    "engines/cuda/meeting_block.h": 1,
    "devices/peer_probe.cu": 1,
    # An address for which a launch cannot say yet how much it uses.
    "engines/cuda/short.cu": 1,
}


def _differences(text: str) -> int:
    conditions = re.findall(r"^#\s*(?:if|ifdef|ifndef|elif)\b.*\bFC_SHIM\b.*$", text, re.MULTILINE)
    return sum("FC_WITH_CUDA" not in condition for condition in conditions)


def test_sources_differ_where_it_is_listed_and_nowhere_else() -> None:
    found = {}
    for path in CSRC.rglob("*"):
        if not path.is_file():
            continue
        count = _differences(path.read_text(errors="replace"))
        if count:
            found[str(path.relative_to(CSRC))] = count
    assert found == DIFFERENCES


def test_a_difference_would_be_seen() -> None:
    assert _differences("#if defined(FC_SHIM)\n#endif\n#ifndef FC_SHIM\n#endif") == 2
    assert _differences("#if defined(FC_WITH_CUDA) || defined(FC_SHIM)\n// FC_SHIM\n") == 0
