"""Compile the product, with the execution shim in place of CUDA, and the simulation, together.

One library, because the shim's devices, streams and clocks must exist once. It is ``fastcomm._C``
and the simulation's own module ``_sim`` at the same time. Everything is compiled quickly rather
than well, with the negative controls of ``csrc/core/control.h``; the layers below torch are those
of the C++ tests under the shim, but for the CPU's loops, which are the product's own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import native_build  # noqa: E402
from support import programs  # noqa: E402

SOURCES = Path(__file__).resolve().parent / "csrc"
LIBRARY = "_C_sim.so"
FLAGS = ["-std=c++20", "-g0", "-fPIC", "-Wall", "-Wno-attributes", "-ffp-contract=off"]
FLAGS += ["-fvisibility=hidden", "-DFC_SHIM", f"-I{native_build.CSRC}", f"-I{ROOT / 'tests'}"]
# Set before anything is built or loaded, this optimizes all, to time what hosts do.
OPTIMIZED = "SIM_OPTIMIZED"
CODE = ["-O3"] if os.environ.get(OPTIMIZED) else ["-O0", "-DFC_CONTROLS"]


def missing() -> str:
    """Return why the library cannot be built here, "" if it can."""
    compiler = native_build.compiler()[0]
    if shutil.which(compiler) is None:
        return f"no C++ compiler: {compiler} is not there"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no headers of Python to compile with"
    return ""


def folder() -> Path:
    """Return where it is built: each torch, Python and compiler has its own folder."""
    import torch

    tag = f"torch{torch.__version__}-{sys.implementation.cache_tag}"
    optimized = "-optimized" if os.environ.get(OPTIMIZED) else ""
    return ROOT / "build" / "sim" / f"{tag}-{Path(native_build.compiler()[0]).name}{optimized}"


def library() -> Path:
    """Return the library's path; compile what has changed, the first time for over a minute.

    Raises:
        RuntimeError: it does not compile; the compiler's output is in the text.
    """
    place = folder()
    below = programs.get(
        programs.SHIM_LIBRARY,
        programs.SHIM_OPTIMIZED if os.environ.get(OPTIMIZED) else programs.SHIM,
    )
    with native_build.locked(place):
        text = "\n".join(ninja_lines(place, below))
        ninja_file = place / "build.ninja"
        if not ninja_file.exists() or ninja_file.read_text() != text:
            ninja_file.write_text(text)
        result = subprocess.run(
            native_build.ninja_command(place), capture_output=True, text=True, check=False
        )
    if result.returncode != 0:
        raise RuntimeError(f"the simulated accelerator does not compile:\n{result.stdout[-6000:]}")
    return place / LIBRARY


def units() -> dict[str, list[Path]]:
    """Return what is compiled together."""
    above = native_build.torch_units()
    return {**above, "bindings": [SOURCES / "module.cpp", *above["bindings"]]}


def ninja_lines(place: Path, below: Path) -> list[str]:
    """Return the lines of ``build.ninja``, for what is linked with the layers below torch."""
    import torch

    torch_folder = Path(torch.__file__).parent
    include, libraries = torch_folder / "include", torch_folder / "lib"
    headers = [include, include / "torch" / "csrc" / "api" / "include"]
    headers.append(Path(sysconfig.get_path("include")))
    flags = [*FLAGS, *CODE, *(f"-isystem{header}" for header in headers), "-fopenmp"]
    flags.append("-DTORCH_EXTENSION_NAME=_C")
    command = native_build.compiler()
    flags += native_build.quick_flags(command)
    cxx = shlex.join([*native_build.launcher(), *command])
    lines = [
        f"flags = {shlex.join(flags)}",
        "rule cxx",
        f"  command = {cxx} $flags -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {shlex.join(command)} -shared -o $out.new $in -L{libraries}"
        " -ltorch_python -ltorch_cpu -ltorch -lc10 -pthread && mv $out.new $out",
    ]
    sources = native_build.write_units(place / "units", units())
    lines += [f"build {source.stem}.o: cxx {source}" for source in sources]
    linked = [*(f"{source.stem}.o" for source in sources), str(below), str(programs.library())]
    lines += [f"build {LIBRARY}: link {' '.join(linked)}", f"default {LIBRARY}", ""]
    return lines


if __name__ == "__main__":
    os.environ.setdefault("MAX_JOBS", "2")
    print(library())
