"""Compile C++ tests with the CUDA sources under the execution shim, and run them.

Only g++ (or ``$CXX``) is needed: no torch, no CUDA.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shlex.split(os.environ.get("CXX", "")) or ["g++"]
FLAGS = [
    *("-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", "-ffp-contract=off"),
    *("-DFC_SHIM", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests/cpp'}"),
]
TSAN = ["-O1", "-g1", "-fsanitize=thread"]
ASAN = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
# For negative controls: one report is enough.
FIRST_RACE = {"TSAN_OPTIONS": "exitcode=66 history_size=4 halt_on_error=1"}

# What runs on several devices of one process, for `cpp_build` with -DFC_SHIM.
LOCAL_SOURCES = (
    "csrc/core/cuda_host.cpp",
    "csrc/core/env.cpp",
    "csrc/core/error.cpp",
    "csrc/transport/local/peer_access.cpp",
    "csrc/transport/local/device_group.cpp",
    "csrc/kernels/cuda/multi_copy.cu",
    "csrc/kernels/cuda/multi_reduce.cu",
    "csrc/kernels/cuda/peer_probe.cu",
    "csrc/coll/cuda/exchange.cpp",
    "csrc/coll/cuda/exchange_plan.cpp",
    "csrc/coll/cuda/local_collectives.cpp",
)


def compile_all(folder: Path, sources: Sequence[str], flags: Sequence[str]) -> list[Path]:
    """Compile ``sources`` (paths in the repository), two at a time; returns the objects.

    Raises:
        RuntimeError: with the compiler's output.
    """
    folder.mkdir(parents=True)
    objects = [folder / f"{Path(source).name}.o" for source in sources]
    pairs = list(zip(sources, objects, strict=True))
    for at in range(0, len(pairs), 2):
        running = [
            subprocess.Popen(
                [*COMPILER, *FLAGS, *flags, "-x", "c++", "-c", str(ROOT / source), "-o", str(out)],
                stderr=subprocess.PIPE,
                text=True,
            )
            for source, out in pairs[at : at + 2]
        ]
        for process in running:
            _, errors = process.communicate(timeout=280)
            if process.returncode != 0:
                raise RuntimeError(errors)
    return objects


def link(program: Path, objects: Sequence[Path], flags: Sequence[str]) -> Path:
    """Link ``objects`` into ``program``."""
    command = [*COMPILER, *FLAGS, *flags, *map(str, objects), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    return program


def run(program: Path, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a program of `link`; its output is in ``stdout``, sanitizers' reports too.

    Under ThreadSanitizer addresses must not be random: older versions of its runtime refuse the
    layout that newer kernels choose.
    """
    fixed = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    return subprocess.run(
        [*fixed, str(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env={**os.environ, "TSAN_OPTIONS": "exitcode=66 history_size=4"},
    )


def races(output: str) -> list[str]:
    """Where ThreadSanitizer reported a data race: one line of its summary each."""
    return [line for line in output.splitlines() if "SUMMARY: ThreadSanitizer: data race" in line]
