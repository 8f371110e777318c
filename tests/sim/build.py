"""Compile the product, with the execution shim in place of CUDA, and the simulation, together.

One library, because the shim's devices, streams and clocks must exist once. It is ``fastcomm._C``
and the simulation's own module ``_sim`` at the same time. Everything is compiled quickly rather
than well, for one instruction set, with the negative controls of ``csrc/core/control.h``.
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

SOURCES = Path(__file__).resolve().parent / "csrc"
LIBRARY = "_C_sim.so"
FLAGS = ["-std=c++20", "-g0", "-fPIC", "-Wall", "-Wno-attributes", "-ffp-contract=off"]
FLAGS += ["-fvisibility=hidden", "-DFC_SHIM", f"-I{native_build.CSRC}", f"-I{ROOT / 'tests'}"]
# The CPU's loops are worth a compiler's time; the rest is not, least of all kernels on threads.
LOOPS, REST = ["-O1", "-DFC_CONTROLS"], ["-O0", "-DFC_CONTROLS"]
# Set before anything is built or loaded, this optimizes all, to time what hosts do.
OPTIMIZED = "SIM_OPTIMIZED"
if os.environ.get(OPTIMIZED):
    LOOPS = REST = ["-O3"]


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
    with native_build.locked(place):
        text = "\n".join(ninja_lines(place))
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
    """Return what is compiled together: sources with the same headers, which take most of the time.

    Longest first, so that no processor waits for the last one.
    """
    csrc = native_build.CSRC
    portable = [
        path for path in native_build.native_sources() if native_build.variant_of(path) is None
    ]
    return {
        "bindings": [SOURCES / "module.cpp", *sorted((csrc / "bindings").glob("*.cpp"))],
        "c10d": sorted((csrc / "c10d").rglob("*.cpp")),
        "ops": sorted([*(csrc / "ops").glob("*.cpp"), *(csrc / "tensors").glob("*.cpp")]),
        **native_build.units_of(portable),
    }


def ninja_lines(place: Path) -> list[str]:
    """Return the lines of ``build.ninja``."""
    import torch

    torch_folder = Path(torch.__file__).parent
    include, libraries = torch_folder / "include", torch_folder / "lib"
    headers = [include, include / "torch" / "csrc" / "api" / "include"]
    headers.append(Path(sysconfig.get_path("include")))
    above = [*(f"-isystem{header}" for header in headers), "-fopenmp"]
    above.append("-DTORCH_EXTENSION_NAME=_C")
    command = native_build.compiler()
    cxx = shlex.join([*native_build.launcher(), *command])
    lines = [
        f"flags = {shlex.join(FLAGS)}",
        "rule cxx",
        f"  command = {cxx} $flags $more -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {shlex.join(command)} -shared -o $out.new $in -L{libraries}"
        " -ltorch_python -ltorch_cpu -ltorch -lc10 -pthread && mv $out.new $out",
    ]
    objects = []
    sources = native_build.write_units(place / "units", units())
    for source in [*sources, *native_build.cuda_sources()]:
        with_torch = source.stem in ("bindings", "c10d", "ops")
        more = [*REST, *above] if with_torch else LOOPS
        more = [*REST, "-x", "c++"] if source.suffix == ".cu" else more
        objects.append(f"{source.stem}.o")
        lines += [f"build {objects[-1]}: cxx {source}", f"  more = {shlex.join(more)}"]
    lines += [f"build {LIBRARY}: link {' '.join(objects)}", f"default {LIBRARY}", ""]
    return lines


if __name__ == "__main__":
    os.environ.setdefault("MAX_JOBS", "2")
    print(library())
