"""The torch-free C++ programs of the tests: one table, one ninja build, and how to run them.

Every program is compiled at most once for each set of flags (`Build`), and shares the objects of
the library's sources with the others. What the chosen tests need is built before the first of them
starts, or beside tests that need nothing (tests/conftest.py); a test run alone builds its own.
Rules that negative controls leave out are chosen when a program runs (csrc/core/control.h). Only
g++ (or ``$CXX``) and ninja are needed::

    python tests/support/programs.py            # everything that `make test` runs
"""

from __future__ import annotations

import functools
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

import native_build  # noqa: E402
from support.patience import ENDS  # noqa: E402

THREAD = "-fsanitize=thread"
TSAN = ("-g1", THREAD, "-Wno-tsan")  # fences order the sleeping of doorbell.h only
# -Og: what these sanitizers insert takes long to optimize
ASAN = ("-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
CONTROLS = "-DFC_CONTROLS"
SHIM_FLAGS = ("-DFC_SHIM", CONTROLS)  # CUDA sources run on the host; flag operations yield
FEW = "-DFC_FEW_KERNELS"


DEVICES = "devices"  # the last layer, and the parts of "core" that need CUDA
PEERS = "peers"  # the parts of other layers that need it
UNITS = (*native_build.LAYERS, PEERS)
CPU_LAYERS = tuple(layer for layer in native_build.LAYERS if layer != DEVICES)


@dataclass(frozen=True)
class Build:
    """A set of flags.

    Attributes:
        name: name of the folder of its objects.
        flags: for compiler and linker, besides those of all builds.
        library: programs are linked with the library that ``fastcomm._C`` is made of, as it is.
        rare: nothing that `make test` runs needs it.
    """

    name: str
    flags: tuple[str, ...]
    library: bool = False
    rare: bool = False


PLAIN = Build("plain", (), library=True)
WATCHED = Build("watched", (*TSAN, *SHIM_FLAGS, FEW))
BOUNDS = Build("bounds", (*ASAN, CONTROLS))
SHIM = Build("shim", SHIM_FLAGS)
SHIM_BOUNDS = Build("shim_bounds", (*ASAN, *SHIM_FLAGS, FEW))
WATCHED_ALL = Build("watched_all", (*TSAN, *SHIM_FLAGS), rare=True)
SHIM_BOUNDS_ALL = Build("shim_bounds_all", (*ASAN, *SHIM_FLAGS), rare=True)
# The assertions see an index past the end of a short string, which is still inside the object.
LIBFUZZER = Build(
    "libfuzzer",
    (
        *("-g1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined"),
        *("-D_GLIBCXX_ASSERTIONS", "-Wno-unused-command-line-argument", "-Wno-error"),
    ),
    rare=True,
)
COMMON = (
    *("-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-omit-frame-pointer"),
    *native_build.NUMERIC_FLAGS,
)
# For negative controls: one report is enough.
FIRST_RACE = {"TSAN_OPTIONS": "exitcode=66 history_size=4 halt_on_error=1"}


def layer_units() -> dict[str, list[Path]]:
    """Return what is compiled together: the portable sources of each layer below torch.

    Those that need CUDA, or the shim, are separate units: one for the devices of a process, one for
    those of several.
    """
    units: dict[str, list[Path]] = {}
    for source in native_build.native_sources():
        if native_build.variant_of(source) is None:
            layer = source.relative_to(native_build.CSRC).parts[0]
            if native_build.needs_cuda(source):
                layer = DEVICES if layer in (DEVICES, "core") else PEERS
            units.setdefault(layer, []).append(source)
    return units


@dataclass(frozen=True)
class Program:
    """A program of ``tests/cpp``.

    Attributes:
        name: of the program; its own source is ``tests/cpp/<name>.cpp`` unless ``source`` says so.
        test: the file of ``tests`` that runs it.
        builds: how it is built.
        sources: what it is compiled with, where it is not linked with the library: files, and
            units of `layer_units`.
    """

    name: str
    test: str
    builds: tuple[Build, ...]
    sources: tuple[str, ...] = CPU_LAYERS
    source: str = ""

    def sources_for(self, build: Build) -> list[str]:
        """Return everything that is compiled for it, its own source first."""
        own = self.source or f"tests/cpp/{self.name}.cpp"
        rest = () if build.library else self.sources
        return [own, *(f"units/{s}.cpp" if s in UNITS else s for s in rest)]


ERROR = "csrc/core/error.cpp"
CUDA_HOST = tuple(
    f"csrc/core/{name}.cpp" for name in ("cuda_context", "cuda_driver", "device_guard")
)
NORM = ("csrc/kernels/cuda/gradient_norm.cu", ERROR)
# What runs on several devices of one process.
LOCAL = (
    *(DEVICES, "csrc/core/env.cpp", ERROR),
    *(f"csrc/kernels/cuda/{name}.cu" for name in ("multi_copy", "multi_reduce")),
    "csrc/devices/peer_probe.cu",
)
CPU_LOOPS = (
    *("csrc/core/env.cpp", "csrc/coll/fused_local.cpp", "csrc/coll/gradient_list.cpp"),
    *("csrc/kernels/isa.cpp", "csrc/kernels/gradient_cpu.cpp", "csrc/kernels/reduce_cpu.cpp"),
    *("csrc/kernels/gradient_generic.cpp", "csrc/kernels/reduce_generic.cpp"),
    "csrc/kernels/reduce_plain_generic.cpp",
)
# What runs on a device of each process.
PEER_COLLECTIVES = (
    *(PEERS, "transport"),
    *(f"csrc/engines/cuda/{name}.cu" for name in ("meeting", "pairs", "short", "short_combine")),
    *(f"csrc/kernels/cuda/multi_{name}.cu" for name in ("copy", "reduce", "combine")),
    "csrc/kernels/cuda/indirect_reduce.cu",
    *(
        f"csrc/coll/{name}.cpp"
        for name in (
            *("call", "describe_call", "operations", "in_place"),
            *("all_to_all_v", "messages", "unlike"),
        )
    ),
    *(*CUDA_HOST, ERROR, "csrc/core/wait_warning.cpp", *CPU_LOOPS),
)
_COMMUNICATOR = "engines/test_communicator.py"
_SHM = "transport/test_shm.py"
_LOCAL = "devices/test_local_collectives.py"
_WATCHED = (PLAIN, WATCHED, BOUNDS)
PROGRAMS = (
    *(
        Program(f"communicator{part}_test", _COMMUNICATOR, _WATCHED)
        for part in ("", "_failures", "_timeouts")
    ),
    Program("communicator_evidence_test", _COMMUNICATOR, (PLAIN, WATCHED)),
    *(
        Program(f"point_to_point{part}_test", "engines/test_point_to_point.py", _WATCHED)
        for part in ("", "_failures")
    ),
    Program("fused_test", "coll/test_fused_all_reduce.py", _WATCHED),
    Program(
        *("slot_sizes_test", "coll/test_slot_sizes.py", (BOUNDS,)),
        (
            "csrc/coll/slot_sizes.cpp",
            "csrc/core/caches.cpp",
            "csrc/core/env.cpp",
            "csrc/core/tuning.cpp",
            ERROR,
        ),
    ),
    Program(
        *("unlike_test", "coll/test_unlike.py", (BOUNDS,)),
        ("csrc/coll/unlike.cpp", ERROR),
    ),
    Program("stage_copy_test", "kernels/test_stage_copy.py", (BOUNDS,), ()),
    Program("span_cpu_test", "kernels/test_span_cpu.py", (BOUNDS,), ("kernels", "core")),
    Program("list_plan_test", "coll/test_list_plan.py", (BOUNDS,), (ERROR,)),
    Program(
        *("host_cache_test", "core/test_host_cache.py", _WATCHED),
        (ERROR, "csrc/core/host_cache.cpp"),
    ),
    Program(
        *("pool_blocks_test", "transport/test_pool_blocks.py", (BOUNDS,)),
        ("csrc/transport/ipc/pool_blocks.cpp", ERROR),
    ),
    Program(
        *("reduce_test", "kernels/test_reduce.py", (PLAIN, BOUNDS)),
        ("kernels", "core"),
    ),
    Program(
        *("reduce_plain_test", "kernels/test_reduce.py", (PLAIN, BOUNDS)),
        ("kernels", "core"),
    ),
    Program(
        *("conversions_test", "kernels/test_reduce.py", (PLAIN, BOUNDS)),
        ("kernels", "core"),
    ),
    *(
        Program(f"{part}_test", _SHM, (PLAIN, BOUNDS))
        for part in ("shm", "shm_ends", "handshake", "forming", "shared_buffer")
    ),
    Program(
        *("handshake_fuzz", "fuzz/test_handshake_fuzz.py", (BOUNDS,)),
        (*CPU_LAYERS, "tests/fuzz/replay.cpp"),
        "tests/fuzz/handshake_fuzz.cpp",
    ),
    Program(
        *("handshake_libfuzzer", "fuzz/run.py", (LIBFUZZER,)),
        ("core", "transport"),  # what forms a group, and nothing above it
        "tests/fuzz/handshake_fuzz.cpp",
    ),
    Program(
        *("shim_multi_copy_test", "kernels/test_cuda_multi.py", (SHIM_BOUNDS, WATCHED)),
        ("csrc/kernels/cuda/multi_copy.cu", ERROR),
    ),
    Program(
        *("shim_multi_reduce_test", "kernels/test_cuda_multi.py"),
        (SHIM, SHIM_BOUNDS, WATCHED),
        ("csrc/kernels/cuda/multi_reduce.cu", ERROR),
    ),
    Program(
        *("shim_multi_combine_test", "kernels/test_cuda_multi.py"),
        (SHIM, SHIM_BOUNDS, WATCHED),
        ("csrc/kernels/cuda/multi_combine.cu", ERROR, *CPU_LOOPS),
    ),
    Program(
        *("shim_multi_gradient_test", "kernels/test_cuda_multi.py"),
        (SHIM, SHIM_BOUNDS, WATCHED),
        (
            *("csrc/kernels/cuda/multi_gradient.cu", "csrc/kernels/cuda/gradient_norm.cu"),
            *(ERROR, *CPU_LOOPS),
        ),
    ),
    Program(
        *("benchmark_calls_test", "bench/test_cuda_kernels.py", (SHIM_BOUNDS,)),
        (*(f"csrc/kernels/cuda/multi_{name}.cu" for name in ("copy", "reduce", "gradient")), *NORM),
    ),
    Program(*("shim_order_test", "shim/test_shim.py", (SHIM, WATCHED)), LOCAL),
    *(
        Program(
            *(name, "shim/test_shim_ipc.py", (SHIM,)),
            (*CUDA_HOST, ERROR),
        )
        for name in (
            "shim_ipc_test",
            "shim_ipc_order_test",
            "shim_vmm_test",
        )
    ),
    *(
        Program(*(name, "engines/test_peer_collectives.py", (SHIM,)), PEER_COLLECTIVES)
        for name in ("shim_peer_collectives_test", "shim_peer_soak_test")
    ),
    Program(
        *("shim_peer_threads_test", "engines/test_peer_collectives.py", (SHIM, WATCHED)),
        PEER_COLLECTIVES,
    ),
    Program(
        *("shim_device_set_test", "devices/test_device_set.py", (SHIM, WATCHED)),
        LOCAL,
    ),
    Program(
        *("shim_local_collectives_test", _LOCAL),
        (SHIM, SHIM_BOUNDS, WATCHED, WATCHED_ALL, SHIM_BOUNDS_ALL),
        LOCAL,
    ),
)


def folder() -> Path:
    """Return where everything is built; another compiler has another folder."""
    return ROOT / "build" / f"tests-{Path(native_build.compiler()[0]).name}"


def ninja_lines(programs: Iterable[Program]) -> Iterator[str]:
    """Yield the lines of ``build.ninja`` for all builds of ``programs``."""
    command = native_build.compiler()
    base = [*native_build.standard_flags(command), *COMMON]
    base += [f"-I{ROOT / place}" for place in ("csrc", "tests/cpp", "tests")]
    yield f"flags = {shlex.join(base)}"
    cxx = shlex.join([*native_build.launcher(), *command])
    yield f"rule cxx\n  command = {cxx} $flags $more -MMD -MF $out.d $language -c $in -o $out"
    yield "  depfile = $out.d\n  deps = gcc\n  description = $build: $source"
    yield f"rule link\n  command = {shlex.join(command)} $flags $more $in -o $out"
    yield "  description = $build: $out"
    library = native_build.library_dir(None) / native_build.LIBRARY_NAME
    seen = set()
    for program in programs:
        for build in program.builds:
            objects = []
            for source in program.sources_for(build):
                objects.append(f"{build.name}/{source}.o")
                if objects[-1] in seen:
                    continue
                seen.add(objects[-1])
                place = folder() if source.startswith("units/") else ROOT
                yield f"build {objects[-1]}: cxx {place / source}"
                yield f"  build = {build.name}\n  source = {source}"
                yield f"  more = {shlex.join(build.flags)}"
                yield f"  language = {'-x c++' if source.endswith('.cu') else ''}"
            linked = [*objects, str(library)] if build.library else objects
            yield f"build {build.name}/{program.name}: link {' '.join(linked)}"
            yield f"  build = {build.name}\n  more = {shlex.join(build.flags)}"
    yield ""


_made: set[str] = set()


def make(wanted: Iterable[tuple[str, Build]], *, quiet: bool = True) -> None:
    """Build programs, all at once; a process asks for each only once.

    Args:
        wanted: names and builds.
        quiet: keep the compilers' output, else show progress.

    Raises:
        RuntimeError: with the compilers' output, if it was kept.
    """
    wanted = list(wanted)
    targets = sorted({f"{build.name}/{name}" for name, build in wanted} - _made)
    if not targets:
        return
    output = subprocess.PIPE if quiet else None
    if any(build.library for _, build in wanted):
        command = [sys.executable, str(ROOT / "tools/native_build.py"), "--library"]
        _run(command, output)
    place = folder()
    with native_build.locked(place):
        native_build.write_units(place / "units", layer_units())
        text = "\n".join(ninja_lines(PROGRAMS))
        ninja_file = place / "build.ninja"
        if not ninja_file.exists() or ninja_file.read_text() != text:
            ninja_file.write_text(text)
        _run([*native_build.ninja_command(place), *targets], output)
    _made.update(targets)


def _run(command: list[str], output: int | None) -> None:
    result = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise RuntimeError(result.stdout or "the programs of the tests do not compile, see above")


def needed(tests: Iterable[str]) -> list[tuple[str, Build]]:
    """Return what tests need, by their files' paths under ``tests``, except what is rare."""
    files = set(tests)
    return [
        (program.name, build)
        for program in PROGRAMS
        if program.test in files
        for build in program.builds
        if not build.rare
    ]


@functools.cache
def get(name: str, build: Build) -> Path:
    """Return a program, built if it was not.

    Raises:
        RuntimeError: it does not compile; with the compiler's output.
    """
    make([(name, build)])
    return folder() / build.name / name


def run(
    program: Path,
    *arguments: str,
    control: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = ENDS,
) -> subprocess.CompletedProcess[str]:
    """Run a program; its output is in ``stdout``, sanitizers' reports too.

    Under ThreadSanitizer addresses are not random: its older runtimes refuse the layout that newer
    kernels choose. Nothing else turns that off, as sandboxes may forbid the system call.

    Args:
        program: of `get`.
        arguments: its own.
        control: a rule to leave out, as csrc/core/control.h names it.
        environment: variables besides those of this process.
        timeout: seconds.
    """
    ordered = watched(program) and shutil.which("setarch")
    fixed = ["setarch", platform.machine(), "-R"] if ordered else []
    sanitizers = {
        "TSAN_OPTIONS": "exitcode=66 history_size=4",
        "ASAN_OPTIONS": "detect_leaks=1 exitcode=67",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    chosen = {"FC_CONTROL": control} if control else {}
    return subprocess.run(
        [*fixed, str(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env={**os.environ, **sanitizers, **chosen, **(environment or {})},
    )


def watched(program: Path) -> bool:
    """Tell whether a program of `get` was compiled with ThreadSanitizer."""
    return program.parent.name in {
        build.name for each in PROGRAMS for build in each.builds if THREAD in build.flags
    }


def check(program: Path, *arguments: str, **options: object) -> str:
    """Run a program that must succeed, and return its output."""
    result = run(program, *arguments, **options)  # type: ignore[arg-type]
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


def races(output: str) -> list[str]:
    """Return where ThreadSanitizer reported data races: a line of its summary for each."""
    return [line for line in output.splitlines() if "SUMMARY: ThreadSanitizer: data race" in line]


if __name__ == "__main__":
    make(needed({program.test for program in PROGRAMS}), quiet=False)
