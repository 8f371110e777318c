"""The record of a build, ``fastcomm/_build_info.py``, which ``fastcomm._native`` compares."""

from __future__ import annotations

import subprocess
import sys

import native_build
import source_digest
import torch_releases


def text(*, version: str, torch: str, cuda: str | None, architectures: str) -> str:
    """Return the text of the record.

    Args:
        version: of fastcomm.
        torch: the version that it was compiled against, or major and minor, where it serves all
            releases of these.
        cuda: that torch's version of CUDA, None in the flavour without.
        architectures: of GPUs, as in ``TORCH_CUDA_ARCH_LIST``; "" in the flavour without CUDA.
    """
    compiler = subprocess.run(
        [*native_build.compiler(), "--version"], check=True, capture_output=True, text=True
    ).stdout.splitlines()[0]
    newest = torch_releases.newest_known()
    record = {
        "FASTCOMM_VERSION": version,
        "TORCH_VERSION": torch,
        "NEWEST_KNOWN_TORCH": newest,
        "IS_NEWER_TORCH": torch_releases.is_newer(torch, newest),
        "CUDA_VERSION": cuda,
        "PYTHON_TAG": sys.implementation.cache_tag,
        "FLAVOUR": "cuda" if cuda else "cpu",
        "CUDA_ARCHITECTURES": architectures,
        "COMPILER": compiler,
        "SOURCES": source_digest.digest(("csrc",)),
    }
    lines = ['"""What fastcomm._C was built for. Written by the build; do not edit."""', ""]
    return "\n".join(lines + [f"{name} = {value!r}" for name, value in record.items()]) + "\n"
