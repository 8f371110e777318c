"""Build the torch-free layers (core, transport, kernels, coll) into one static library.

setup.py links the library into ``fastcomm._C``; the C++ tests link it without torch. It is a
module of its own because these layers need what torch's extension builder cannot give: flags per
file (one translation unit for each instruction set), and a compile in seconds.

Alone, for tests or with a sanitizer::

    python tools/native_build.py --build-dir build/tsan --cxxflags="-O1 -g -fsanitize=thread"

prints the path of the library. Only g++ (or ``$CXX``) and ninja are needed. ``MAX_JOBS`` bounds
the number of compilers that run at once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
LAYERS = ("core", "transport", "kernels", "coll")
LIBRARY_NAME = "libfastcomm_native.a"

# No contraction into fused multiply-add: a sum must have the same bits on every machine.
NUMERIC_FLAGS = ["-ffp-contract=off"]
CODE_FLAGS = ["-g0", "-O3", *NUMERIC_FLAGS, "-fvisibility=hidden"]
WARNING_FLAGS = ["-Wall", "-Wextra"]

# A source named <anything><suffix> is compiled for an instruction set of its own, and the whole
# build sees the macro, so that the dispatcher names only variants that exist.
X86_VARIANTS = {
    "_avx2.cpp": ("FC_HAVE_AVX2", ["-mavx2", "-mf16c"]),
    "_avx512.cpp": (
        "FC_HAVE_AVX512",
        ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mf16c"],
    ),
}


def compiler() -> list[str]:
    """Return the C++ compiler's command: ``$CXX``, else g++."""
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def find_ninja() -> str:
    """Return ninja's path; the running interpreter's environment comes before ``PATH``."""
    scripts = sysconfig.get_path("scripts")
    ninja = shutil.which("ninja", path=os.pathsep.join([scripts, os.environ.get("PATH", "")]))
    if ninja is None:
        raise SystemExit("fastcomm: ninja is missing. Type:\n    pip install ninja")
    return ninja


def variant_of(source: Path) -> tuple[str, list[str]] | None:
    """Return (macro, flags) of a source for one instruction set, None for a portable source."""
    for suffix, variant in X86_VARIANTS.items():
        if source.name.endswith(suffix):
            return variant
    return None


def native_sources() -> list[Path]:
    """Return the torch-free C++ sources that this machine's architecture can run."""
    on_x86 = platform.machine() in ("x86_64", "AMD64")
    found = (path for layer in LAYERS for path in sorted((CSRC / layer).rglob("*.cpp")))
    return [
        path
        for path in found
        if "shim" not in path.relative_to(CSRC).parts and (on_x86 or variant_of(path) is None)
    ]


def needs_cuda(source: Path) -> bool:
    """Whether a source is empty in builds without CUDA: its first line says so."""
    return source.read_text().startswith("#if defined(FC_WITH_CUDA)")


def variant_macros(sources: Sequence[Path]) -> list[str]:
    """Return the FC_HAVE_* macros for the variants among ``sources``."""
    return sorted({variant[0] for variant in map(variant_of, sources) if variant})


def standard_flags(command: Sequence[str]) -> list[str]:
    """Ask for C++17 only where the compiler's own default is older (GCC before 11)."""
    macros = subprocess.run(
        [*command, "-dM", "-E", "-x", "c++", os.devnull],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    default = next(line.split()[-1] for line in macros.splitlines() if "__cplusplus" in line)
    return ["-std=gnu++17"] if int(default.rstrip("L")) < 201703 else []


def write_ninja_file(build_dir: Path, flags: Sequence[str], sources: Sequence[Path]) -> None:
    """Write ``build_dir/build.ninja``; ninja compares commands, so rewriting it costs nothing."""
    command = compiler()
    macros = [f"-D{macro}=1" for macro in variant_macros(sources)]
    base = [*standard_flags(command), "-I", str(CSRC), *macros, *flags]
    lines = [
        f"cxx = {shlex.join(command)}",
        f"cxxflags = {shlex.join(base)}",
        "rule cxx",
        "  command = $cxx -MMD -MF $out.d $cxxflags $variant -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $cxx $source",
        "rule ar",
        "  command = rm -f $out && ar crs $out $in",
        "  description = ar $out",
    ]
    objects = []
    for source in sources:
        relative = source.relative_to(ROOT)
        objects.append(f"{relative}.o".replace(" ", "$ "))
        variant = variant_of(source)
        lines += [
            f"build {objects[-1]}: cxx {str(source).replace(' ', '$ ')}",
            f"  source = {relative}",
            f"  variant = {shlex.join(variant[1]) if variant else ''}",
        ]
    lines += [f"build {LIBRARY_NAME}: ar {' '.join(objects)}", f"default {LIBRARY_NAME}", ""]
    build_dir.mkdir(parents=True, exist_ok=True)
    (build_dir / "build.ninja").write_text("\n".join(lines))


def build(build_dir: Path, flags: Sequence[str]) -> Path:
    """Compile what has changed and return the library's path.

    Args:
        build_dir: folder for objects; one for each set of flags that is to stay compiled.
        flags: compiler flags beside the include path, the variant macros and the variant's own.

    Raises:
        SystemExit: a source does not compile; the compiler's words are on stdout.
    """
    sources = native_sources()
    write_ninja_file(build_dir, flags, sources)
    jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
    if subprocess.run([find_ninja(), "-C", str(build_dir), *jobs]).returncode != 0:
        raise SystemExit("fastcomm: the layers below torch do not compile, see above")
    return build_dir / LIBRARY_NAME


def compile_commands(*build_dirs: Path) -> list[dict[str, str]]:
    """Return the entries of compile_commands.json for folders that hold a build.ninja."""
    entries: list[dict[str, str]] = []
    for build_dir in build_dirs:
        if (build_dir / "build.ninja").exists():
            command = [find_ninja(), "-C", str(build_dir), "-t", "compdb"]
            entries += json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [entry for entry in entries if entry["file"].endswith((".cpp", ".cu"))]


def main() -> None:
    """Build as told on the command line and print the library's path as the last line."""
    parser = argparse.ArgumentParser(description="Build the layers below torch.")
    parser.add_argument("--build-dir", type=Path, required=True)
    parser.add_argument("--cxxflags", default=shlex.join(CODE_FLAGS), help="default: %(default)s")
    arguments = parser.parse_args()
    flags = ["-fPIC", "-pthread", *NUMERIC_FLAGS, *WARNING_FLAGS, *shlex.split(arguments.cxxflags)]
    print(build(arguments.build_dir.resolve(), flags))


if __name__ == "__main__":
    main()
