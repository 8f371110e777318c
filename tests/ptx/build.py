"""The programs of ``tests/cpp`` with nvcc's own kernels, without a GPU: how they are built.

A program is the host code that nvcc has compiled (``libfastcomm_native.a`` of the CUDA flavour) and
a CUDA runtime that executes the PTX of each kernel that is launched (machine.cpp, cudart.cpp). Two
builds: in `TURNS` the threads of a grid take turns in a random order (coroutines.cpp), in `WATCHED`
they are threads of the host, and ThreadSanitizer looks at what they do (threads.cpp). The PTX is
read when a program runs, so one that has been changed needs no compiler.
"""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import native_build
from support import nvcc, programs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "ptx"
TURNS, WATCHED = "turns", programs.WATCHED.name
THREAD = programs.THREAD
# What computes uses nothing that threads share: ThreadSanitizer need not look.
COMPUTING = ("program", "decoder", "instructions", "arithmetic", "machine", "memory")
SHARING = {TURNS: ("access", "coroutines"), WATCHED: ("access", "threads")}
FLAGS = "-g1 -Wall -Wextra -Werror -pthread -fwrapv -ffp-contract=off -DFC_SHIM -std=c++20"
NAMES = (
    *("multi_copy", "multi_reduce", "multi_combine", "multi_gradient"),
    *("device_set", "exchange", "peer_collectives", "peer_threads"),
)
# Of the host's code, which is compiled without ThreadSanitizer. A file of the sources: one that
# is written here would be empty for a moment, while another worker's program reads it.
SUPPRESSED = Path(__file__).with_name("suppressed.txt")


def ptx_files() -> list[Path]:
    """Return what nvcc made of every source with kernels."""
    return sorted(nvcc.library().parent.glob("csrc/**/*.ptx"))


def _lines() -> Iterator[str]:
    """Yield the lines of ``build.ninja``."""
    standard = native_build.standard_flags(native_build.compiler())
    common = [*standard, *(f"-I{ROOT / place}" for place in ("csrc", "tests", "tests/ptx"))]
    cxx = shlex.join([*native_build.launcher(), *native_build.compiler(), *common])
    yield f"rule cxx\n  command = {cxx} $flags -MMD -MF $out.d -c $in -o $out"
    yield "  depfile = $out.d\n  deps = gcc"
    linked = shlex.join([*native_build.compiler(), "-pthread", "-rdynamic"])
    yield f"rule link\n  command = {linked} $flags $in -o $out"

    def compiled(source: str, out: str, flags: str) -> str:
        return f"build {out}: cxx {ROOT / source}\n  flags = {flags}"

    for name in COMPUTING:
        yield compiled(f"tests/ptx/{name}.cpp", f"{name}.o", f"{FLAGS} -O2")
    cuda = f"{nvcc.HOME}/include"
    # The names of built-in variables, for what tests include of kernels and do not call.
    host = f"-DFC_WITH_CUDA=1 -isystem {cuda} -include {cuda}/device_launch_parameters.h"
    for name in NAMES:
        source = f"tests/cpp/shim_{name}_test.cpp"
        yield compiled(source, f"{name}.o", f"-O1 -g1 -pthread {host} -I{ROOT / 'tests/cpp'}")
    for build, names in SHARING.items():
        flags = f"-O1 {THREAD} -Wno-tsan" if build == WATCHED else "-O2"
        for name in (*names, "cudart", "check"):
            yield compiled(f"tests/ptx/{name}.cpp", f"{build}/{name}.o", f"{FLAGS} {flags}")
        shared = [f"{name}.o" for name in COMPUTING] + [f"{build}/{name}.o" for name in names]
        programs_of = {name: [f"{name}.o", f"{build}/cudart.o"] for name in NAMES}
        for name, own in {**programs_of, "check": [f"{build}/check.o"]}.items():
            yield f"build {build}/{name}: link {' '.join([*own, *shared])} {nvcc.library()}"
            yield f"  flags = {THREAD if build == WATCHED else ''}"
    yield ""


@functools.cache
def program(name: str, build: str = TURNS) -> Path:
    """Return a program of `NAMES`, or the one that reads PTX alone, "check".

    Raises:
        RuntimeError: it does not compile; with the compiler's output.
    """
    nvcc.library()
    with native_build.locked(FOLDER):
        text = "\n".join(_lines())
        ninja_file = FOLDER / "build.ninja"
        if not ninja_file.exists() or ninja_file.read_text() != text:
            ninja_file.write_text(text)
        command = [*native_build.ninja_command(FOLDER), f"{build}/{name}"]
        made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        raise RuntimeError(made.stdout)
    return FOLDER / build / name


def environment(
    *, changed: Path | None = None, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables of a run.

    Args:
        changed: PTX that takes the place of the file of the same name.
        more: what a test sets besides.
    """
    files = [changed if changed and path.name == changed.name else path for path in ptx_files()]
    return {
        "FC_PTX": os.pathsep.join(map(str, files)),
        "TSAN_OPTIONS": f"exitcode=66 suppressions={SUPPRESSED}",
        **(more or {}),
    }
