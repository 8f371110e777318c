"""Build the torch-free layers, from core up to devices, into one static library.

setup.py links the library into ``fastcomm._C``; the C++ tests link the very same one without torch.
It is a separate module because these layers need what torch's extension builder cannot give: flags
per file (one translation unit for each instruction set), a compile in seconds, and objects that
serve every torch and every Python. With CUDA, one nvcc per source makes the object and leaves
beside it what tests and ``tools/kernel_table.py`` read: PTX, cubins, and the assembler's report.

Alone, for tests or with a sanitizer::

    python tools/native_build.py --build-dir build/tsan --cxxflags="-O1 -g -fsanitize=thread"

prints the path of the library. Only g++ (or ``$CXX``) and ninja are needed. ``MAX_JOBS`` bounds
the number of compilers that run at once.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cuda_toolkit

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
LAYERS = ("core", "transport", "kernels", "coll", "engines", "devices")
LIBRARY_NAME = "libfastcomm_native.a"
UNIT_LINE = "#include "  # the start of every line of a unit, see write_units

# No contraction into fused multiply-add: a sum must have the same bits on every machine.
NUMERIC_FLAGS = ["-ffp-contract=off"]
CODE_FLAGS = ["-g0", "-O3", *NUMERIC_FLAGS, "-fvisibility=hidden"]
WARNING_FLAGS = ["-Wall", "-Wextra"]
CUDA_WARNINGS = ["-Xcompiler", "-Wall"]

# A source named <anything><suffix> is compiled for its own instruction set, and the whole build
# sees the macro, so that the dispatcher names only variants that exist.
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
    return [path for path in found if on_x86 or variant_of(path) is None]


def cuda_sources() -> list[Path]:
    """Return the sources that nvcc compiles."""
    return [path for layer in LAYERS for path in sorted((CSRC / layer).rglob("*.cu"))]


def needs_cuda(source: Path) -> bool:
    """Tell whether a source is empty in builds without CUDA: its first line says so."""
    return source.read_text().startswith("#if defined(FC_WITH_CUDA)")


def units_of(sources: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the sources of each unit, by name: those of a layer, or one source of loops.

    Loops take longest to compile, so each such source is a unit. For the others most of the time
    goes into the standard library's headers, which a unit parses once.
    """
    units: dict[str, list[Path]] = {}
    for source in sources:
        layer = source.relative_to(CSRC).parts[0]
        units.setdefault(source.stem if is_loops(source) else layer, []).append(source)
    return units


def is_loops(source: Path) -> bool:
    """Tell whether a source, or a unit, has the loops for one instruction set."""
    return source.stem.endswith("_generic") or variant_of(source) is not None


def torch_units() -> dict[str, list[Path]]:
    """Return the units above the layers, of what uses torch.

    They are as few as keep two processors equally busy; the longest comes first.
    """

    def sources(*folders: str) -> list[Path]:
        return sorted(path for folder in folders for path in (CSRC / folder).rglob("*.cpp"))

    return {
        "bindings": sources("bindings"),
        "c10d": sources("c10d"),
        "ops": sources("ops", "tensors"),
    }


def variant_macros(sources: Sequence[Path]) -> list[str]:
    """Return the FC_HAVE_* macros for the variants among ``sources``."""
    return sorted({variant[0] for variant in map(variant_of, sources) if variant})


def standard_flags(command: Sequence[str]) -> list[str]:
    """Return the flag for C++17 if the compiler's default is older (GCC before 11), else none."""
    macros = subprocess.run(
        [*command, "-dM", "-E", "-x", "c++", os.devnull],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    default = next(line.split()[-1] for line in macros.splitlines() if "__cplusplus" in line)
    return ["-std=gnu++17"] if int(default.rstrip("L")) < 201703 else []


def quick_flags(command: Sequence[str]) -> list[str]:
    """Return what lets GCC look for garbage only above a gigabyte; the code is the same."""
    asked = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True)
    is_gcc = "Free Software Foundation" in asked.stdout
    return ["--param=ggc-min-heapsize=1000000"] if is_gcc else []


def launcher() -> list[str]:
    """Return the words in front of a compiler's command: ccache, where available."""
    ccache = shutil.which("ccache")
    return [ccache] if ccache else []


@dataclass(frozen=True)
class Cuda:
    """The CUDA toolkit's folder, and the architectures as nvcc's ``-gencode`` options."""

    home: str
    gencode: tuple[str, ...]

    @property
    def nvcc(self) -> str:
        """The compiler's path."""
        return str(Path(self.home, "bin", "nvcc"))


def library_flags() -> list[str]:
    """Return the flags of the library that ``fastcomm._C`` is linked with, besides CUDA's."""
    flags = ["-fPIC", "-pthread", "-DNDEBUG", *WARNING_FLAGS, *CODE_FLAGS]
    return [*flags, "-O0", "-g"] if os.environ.get("FASTCOMM_DEBUG") == "1" else flags


def library_dir(cuda: Cuda | None) -> Path:
    """Return the folder of the objects of the library that ``fastcomm._C`` is linked with."""
    return ROOT / "build" / ("native-cuda" if cuda else "native-cpu")


def nvcc_rule(cuda: Cuda) -> list[str]:
    """Return ninja's rule for CUDA sources.

    Beside ``<source>.o`` it leaves ``<source>.o.log`` with the assembler's report, and in
    ``<source>.o.kept`` PTX and cubins.
    """
    host = [*NUMERIC_FLAGS, "-fvisibility=hidden", "-fPIC"]
    flags = ["-std=c++17", "-O3", "-fmad=false", *CUDA_WARNINGS, "-DFC_WITH_CUDA=1", f"-I{CSRC}"]
    flags += [word for flag in host for word in ("-Xcompiler", flag)]
    flags += [*cuda.gencode, *cuda_toolkit.compression_options(cuda.home), "-Xptxas", "-v"]
    kept = "$out.kept"
    tidy = "rm -f " + " ".join(f"{kept}/{name}" for name in ("*.ii", "*.cudafe1.*", "*.fatbin*"))
    return [
        f"nvcc = {shlex.quote(cuda.nvcc)}",
        f"nvccflags = {shlex.join(flags)}",
        "rule nvcc",
        f"  command = rm -rf {kept} && mkdir -p {kept}"
        f" && $nvcc -MD -MF $out.d $nvccflags --keep --keep-dir {kept}"
        " -c $in -o $out > $out.log 2>&1 || { cat $out.log; false; }"
        f" && {{ grep -F warning $out.log || true; }} && {tidy}",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = nvcc $source",
    ]


def write_ninja_file(
    build_dir: Path, flags: Sequence[str], sources: Sequence[Path], cuda: Cuda | None = None
) -> None:
    """Write ``build_dir/build.ninja``; ninja compares commands, so rewriting it costs nothing."""
    command = compiler()
    macros = [f"-D{macro}=1" for macro in variant_macros(sources)]
    # Relative, as the loops' units are: their commands are the same in every copy of the sources.
    base = [*standard_flags(command), "-I", os.path.relpath(CSRC, build_dir), *macros, *flags]
    with_cuda = ["-DFC_WITH_CUDA=1", "-isystem", f"{cuda.home}/include"] if cuda else []
    lines = [
        f"cxx = {shlex.join([*launcher(), *command])}",
        f"cxxflags = {shlex.join(base)}",
        "rule cxx",
        "  command = $cxx -MMD -MF $out.d $cxxflags $more -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $cxx $source",
        "rule ar",
        "  command = rm -f $out && ar crs $out $in",
        "  description = ar $out",
        *(nvcc_rule(cuda) if cuda else []),
    ]
    objects = []
    # CUDA sources take longest, so they start first and no processor waits for them at the end.
    for source in cuda_sources() if cuda else []:
        relative = source.relative_to(ROOT)
        objects.append(f"{relative}.o".replace(" ", "$ "))
        lines += [f"build {objects[-1]}: nvcc {str(source).replace(' ', '$ ')}"]
        lines += [f"  source = {relative}"]
    for unit in write_units(build_dir / "units", units_of(sources)):
        name = unit.relative_to(build_dir)
        objects.append(f"{name}.o")
        variant = variant_of(unit)
        more = (variant[1] if variant else []) if is_loops(unit) else with_cuda
        lines += [
            f"build {objects[-1]}: cxx {name}",
            f"  source = {name.stem}",
            f"  more = {shlex.join(more)}",
        ]
    lines += [f"build {LIBRARY_NAME}: ar {' '.join(objects)}", f"default {LIBRARY_NAME}", ""]
    (build_dir / "build.ninja").write_text("\n".join(lines))


@contextmanager
def locked(build_dir: Path) -> Iterator[None]:
    """Hold the folder's lock, so that no other process builds there."""
    build_dir.mkdir(parents=True, exist_ok=True)
    with (build_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ninja_command(build_dir: Path) -> list[str]:
    """Return the command that builds everything in a folder."""
    jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
    return [find_ninja(), "-C", str(build_dir), *jobs]


def build(build_dir: Path, flags: Sequence[str], cuda: Cuda | None = None) -> Path:
    """Compile what has changed and return the library's path.

    Args:
        build_dir: folder for objects; one for each set of flags that is to stay compiled.
        flags: compiler flags beside the include path, the variant macros and the variant's own.
        cuda: compile the CUDA sources too.

    Raises:
        SystemExit: a source does not compile; the compiler's output is on stdout.
    """
    sources = native_sources()
    with locked(build_dir):
        write_ninja_file(build_dir, flags, sources, cuda)
        status = subprocess.run(ninja_command(build_dir)).returncode
    if status != 0:
        raise SystemExit("fastcomm: the layers below torch do not compile, see above")
    return build_dir / LIBRARY_NAME


def build_library(cuda: Cuda | None) -> Path:
    """Build the library that ``fastcomm._C`` is linked with, and return its path."""
    return build(library_dir(cuda), library_flags(), cuda)


def write_units(build_dir: Path, units: Mapping[str, Sequence[Path]]) -> list[Path]:
    """Write one source for each unit, which includes the unit's sources, and return them.

    The headers are then parsed once per unit instead of once per source. A unit is written only if
    it changes.
    """
    build_dir.mkdir(parents=True, exist_ok=True)
    written = []
    for name, sources in units.items():
        text = "".join(f'{UNIT_LINE}"{os.path.relpath(path, CSRC)}"\n' for path in sources)
        path = build_dir / f"{name}.cpp"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        written.append(path)
    return written


def sources_of_entry(entry: dict[str, str]) -> list[str]:
    """Return the sources that a command compiles: its file, or what that includes as a unit."""
    lines = Path(entry["directory"], entry["file"]).read_text().splitlines()
    if not lines or not all(line.startswith(UNIT_LINE) for line in lines):
        return [entry["file"]]
    return [str(CSRC / line.removeprefix(UNIT_LINE).strip('"')) for line in lines]


def compile_commands(*build_dirs: Path) -> list[dict[str, str]]:
    """Return the entries of compile_commands.json for folders that hold a build.ninja.

    A source that is compiled as part of a unit has an entry of its own.
    """
    entries: list[dict[str, str]] = []
    for build_dir in build_dirs:
        if (build_dir / "build.ninja").exists():
            command = [find_ninja(), "-C", str(build_dir), "-t", "compdb"]
            entries += json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [
        {
            **entry,
            "file": source,
            "command": entry["command"].replace(f"-c {entry['file']}", f"-c {source}"),
        }
        for entry in entries
        if entry["file"].endswith((".cpp", ".cu"))
        for source in sources_of_entry(entry)
    ]


def main() -> None:
    """Build as told on the command line and print the library's path as the last line."""
    parser = argparse.ArgumentParser(description="Build the layers below torch.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--build-dir", type=Path)
    where.add_argument("--library", action="store_true", help="what setup.py links, without CUDA")
    parser.add_argument("--cxxflags", default=shlex.join(CODE_FLAGS), help="default: %(default)s")
    arguments = parser.parse_args()
    if arguments.library:
        print(build_library(None))
        return
    flags = ["-fPIC", "-pthread", *NUMERIC_FLAGS, *WARNING_FLAGS, *shlex.split(arguments.cxxflags)]
    print(build(arguments.build_dir.resolve(), flags))


if __name__ == "__main__":
    main()
