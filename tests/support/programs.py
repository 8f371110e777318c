"""The torch-free C++ programs of the tests: one table, one ninja build, and how to run them.

Every program is compiled at most once for each set of flags (`Build`), and shares the objects of
the library's sources with the others. What the chosen tests need is built before the first of them
starts, or beside tests that need nothing (tests/conftest.py); a test run alone builds its own.
Rules that negative controls leave out are chosen when a program runs (csrc/core/control.h). Only
g++ (or ``$CXX``) and ninja are needed::

    python tests/support/programs.py            # builds everything that `make test` runs
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
TSAN = ("-g1", THREAD, "-Wno-tsan")  # no warnings about fences, which order sleeping (doorbell.h)
# -Og: what these sanitizers insert takes long to optimize
ASAN = ("-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
CONTROLS = "-DFC_CONTROLS"
SHIM_FLAGS = ("-DFC_SHIM", CONTROLS)  # CUDA sources run on the host; flag operations yield
FEW = "-DFC_FEW_KERNELS"

DEVICES = "devices"  # the last layer, and the parts of "core" that need CUDA
PEERS = "peers"  # the parts of other layers that need CUDA
UNITS = (*native_build.LAYERS, PEERS)
CPU_LAYERS = tuple(layer for layer in native_build.LAYERS if layer != DEVICES)


@dataclass(frozen=True)
class Build:
    """A set of flags.

    Attributes:
        name: name of the folder of its objects.
        flags: for compiler and linker, besides those of all builds.
        library: True if programs are linked with the library of ``fastcomm._C``, as it is.
        loops: True if they take the layer of the CPU's loops from there, and no other.
        rare: True if nothing that `make test` runs needs it.
    """

    name: str
    flags: tuple[str, ...]
    library: bool = False
    loops: bool = False
    rare: bool = False

    def without_loops(self, sources: Iterable[str]) -> list[str]:
        """Return the sources and units that are compiled, without those of the library."""
        return [source for source in sources if source != "kernels" or not self.loops]


PLAIN = Build("plain", (), library=True)
OPTIMIZED = Build("optimized", ("-O2",))  # of programs that time something
WATCHED = Build("watched", (*TSAN, *SHIM_FLAGS, FEW))
BOUNDS = Build("bounds", (*ASAN, CONTROLS))
# In a library that Python loads, too: that of the simulated accelerator (tests/sim/build.py).
LOADED = ("-fPIC", "-fvisibility=hidden")
SHIM = Build("shim", (*LOADED, *SHIM_FLAGS), loops=True)
# Without controls, to time what hosts do.
SHIM_OPTIMIZED = Build("shim_optimized", (*LOADED, "-DFC_SHIM", "-O3"), loops=True, rare=True)
SHIM_BOUNDS = Build("shim_bounds", (*ASAN, *SHIM_FLAGS, FEW))
WATCHED_ALL = Build("watched_all", (*TSAN, *SHIM_FLAGS), rare=True)
SHIM_BOUNDS_ALL = Build("shim_bounds_all", (*ASAN, *SHIM_FLAGS), rare=True)
# The library's assertions report an index past the end of a short string, inside the object.
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
    """Return the sources that are compiled together: a unit per layer below torch.

    Sources that need CUDA or the shim form two more units: `DEVICES` for several devices of one
    process, and `PEERS` for the devices of several processes.
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
        rest = () if build.library else build.without_loops(self.sources)
        return [own, *(f"units/{s}.cpp" if s in UNITS else s for s in rest)]


def tests(test: str, names: str, builds: tuple[Build, ...], *sources: str) -> tuple[Program, ...]:
    """Return the programs of a file of tests, by their names without the ending ``_test``."""
    return tuple(
        Program(f"{name}_test", test, builds, sources or CPU_LAYERS) for name in names.split()
    )


def kernels(*names: str) -> tuple[str, ...]:
    return tuple(f"csrc/kernels/cuda/{name}.cu" for name in names)


ERROR = "csrc/core/error.cpp"
CUDA_HOST = tuple(
    f"csrc/core/{name}.cpp" for name in ("cuda_context", "cuda_driver", "device_guard")
)
CPU_LOOPS = ("core", "kernels", "csrc/coll/fused_local.cpp", "csrc/coll/gradient_list.cpp")
# Sources for several devices of one process, and for one device per process.
LOCAL = (DEVICES, "core", *kernels("multi_copy", "multi_reduce"), "csrc/devices/peer_probe.cu")
PEER_COLLECTIVES = (
    *("core", "kernels", "transport", "coll", PEERS, *CUDA_HOST),
    *(f"csrc/engines/cuda/{name}.cu" for name in ("meeting", "pairs", "short", "short_combine")),
    *kernels("multi_copy", "multi_reduce", "multi_combine", "indirect_reduce"),
)
_BOUNDS = (BOUNDS,)
_PLAIN = (PLAIN, BOUNDS)
_WATCHED = (PLAIN, WATCHED, BOUNDS)
_SHIM = (SHIM,)
_SHIM_WATCHED = (SHIM, WATCHED)
_SHIM_ALL = (SHIM, SHIM_BOUNDS, WATCHED)
_COMMUNICATOR = "engines/test_communicator.py"
_PEERS = "engines/test_peer_collectives.py"
_LOCAL = "devices/test_exchange.py"
_FUZZ = "tests/fuzz/handshake_fuzz.cpp"
PROGRAMS = (
    *tests(*(_COMMUNICATOR, "communicator communicator_failures communicator_timeouts", _WATCHED)),
    *tests(_COMMUNICATOR, "communicator_evidence", (PLAIN, WATCHED)),
    *tests(*("engines/test_point_to_point.py", "point_to_point point_to_point_failures", _WATCHED)),
    *tests("coll/test_fused_all_reduce.py", "fused", _WATCHED),
    *tests("coll/test_slot_sizes.py", "slot_sizes", _BOUNDS, "core", "csrc/coll/slot_sizes.cpp"),
    *tests(
        *("coll/test_host_thresholds.py", "host_thresholds", _BOUNDS),
        *("core", "csrc/coll/host_thresholds.cpp"),
    ),
    *tests("coll/test_unlike.py", "unlike", _BOUNDS, "csrc/coll/unlike.cpp", ERROR),
    *tests("coll/test_list_plan.py", "list_plan", _BOUNDS, ERROR),
    *tests("coll/test_host_layout.py", "host_layout", _BOUNDS, "csrc/coll/host_layout.cpp", ERROR),
    *tests("core/test_host_cache.py", "host_cache", _WATCHED, "core"),
    *tests("core/test_records.py", "records", _WATCHED, "core"),
    *tests(
        *("c10d/test_watch.py", "watch", (WATCHED, BOUNDS)),
        *("core", "transport", "csrc/c10d/life/watch.cpp"),
    ),
    *tests("kernels/test_stage_copy.py", "stage_copy", _BOUNDS, ERROR),
    *tests("kernels/test_span_cpu.py", "span_cpu", _BOUNDS, "kernels", "core"),
    *tests("kernels/test_reduce.py", "reduce conversions", _PLAIN, "kernels", "core"),
    *tests("kernels/test_add_rms_norm.py", "add_rms_norm", _PLAIN, "kernels", "core"),
    *tests(
        *("transport/test_pool_blocks.py", "pool_blocks", _BOUNDS),
        *("csrc/transport/ipc/pool_blocks.cpp", ERROR),
    ),
    *tests("transport/test_shm.py", "shm shm_ends handshake forming shared_buffer", _PLAIN),
    *tests("transport/test_peer_links.py", "peer_links", _WATCHED, "core", "transport"),
    Program("delayed_wire", "bench/test_delayed_hosts.py", (OPTIMIZED,), ()),
    Program(
        *("handshake_fuzz", "fuzz/test_handshake_fuzz.py", _BOUNDS),
        *((*CPU_LAYERS, "tests/fuzz/replay.cpp"), _FUZZ),
    ),
    Program(  # what forms a group, and nothing above it
        "handshake_libfuzzer", "fuzz/run.py", (LIBFUZZER,), ("core", "transport"), _FUZZ
    ),
    *tests(
        *("kernels/test_cuda_multi.py", "shim_multi_copy", (SHIM_BOUNDS,)),
        *(*kernels("multi_copy"), ERROR),
    ),
    *tests(
        *("kernels/test_cuda_multi.py", "shim_multi_reduce", _SHIM),
        *(*kernels("multi_reduce"), ERROR),
    ),
    *tests(
        *("kernels/test_cuda_multi.py", "shim_multi_combine", _SHIM),
        *(*kernels("multi_combine"), *CPU_LOOPS),
    ),
    *tests(
        *("kernels/test_cuda_multi.py", "shim_multi_gradient", _SHIM),
        *(*kernels("multi_gradient", "gradient_norm"), *CPU_LOOPS),
    ),
    *tests(
        *("bench/test_cuda_kernels.py", "benchmark_calls", (SHIM, SHIM_BOUNDS_ALL)),
        *(*kernels("multi_copy", "multi_reduce", "multi_gradient", "gradient_norm"), ERROR),
    ),
    *tests("shim/test_shim.py", "shim_order", _SHIM_WATCHED, *LOCAL),
    *tests(
        *("shim/test_shim_ipc.py", "shim_ipc shim_ipc_order shim_vmm", _SHIM), *CUDA_HOST, ERROR
    ),
    *tests(_PEERS, "shim_peer_collectives shim_peer_soak", _SHIM, *PEER_COLLECTIVES),
    *tests("engines/test_peer_plan.py", "peer_plan", _SHIM, *PEER_COLLECTIVES),
    *tests("devices/test_device_set.py", "shim_device_set", _SHIM_WATCHED, *LOCAL),
    *tests(*(_LOCAL, "shim_exchange", (*_SHIM_ALL, WATCHED_ALL, SHIM_BOUNDS_ALL)), *LOCAL),
)


# What is not a program: all that is compiled with the shim, for `SHIM` and `SHIM_OPTIMIZED`. It is
# linked with `library`, too.
SHIM_LIBRARY = "libfastcomm_shim.a"


def folder() -> Path:
    """Return where everything is built; another compiler has another folder."""
    return ROOT / "build" / f"tests-{Path(native_build.compiler()[0]).name}"


def library() -> Path:
    """Return the library of ``fastcomm._C``; `make` builds it where it is needed."""
    return native_build.library_dir(None) / native_build.LIBRARY_NAME


def ninja_lines(programs: Iterable[Program]) -> Iterator[str]:
    """Yield the lines of ``build.ninja`` for all builds of ``programs``."""
    command = native_build.compiler()
    base = [*native_build.standard_flags(command), *native_build.quick_flags(command), *COMMON]
    base += [f"-I{ROOT / place}" for place in ("csrc", "tests/cpp", "tests")]
    yield f"flags = {shlex.join(base)}"
    cxx = shlex.join([*native_build.launcher(), *command])
    yield f"rule cxx\n  command = {cxx} $flags $more -MMD -MF $out.d $language -c $in -o $out"
    yield "  depfile = $out.d\n  deps = gcc\n  description = $build: $source"
    yield f"rule link\n  command = {shlex.join(command)} $flags $more $in -o $out"
    yield "  description = $build: $out"
    yield "rule archive\n  command = rm -f $out && ar rcs $out $in\n  description = $build: $out"
    seen = set()

    def compiled(sources: Iterable[str], build: Build) -> Iterator[str]:
        for source in sources:
            if f"{build.name}/{source}.o" in seen:
                continue
            seen.add(f"{build.name}/{source}.o")
            place = folder() if source.startswith("units/") else ROOT
            yield f"build {build.name}/{source}.o: cxx {place / source}"
            yield f"  build = {build.name}\n  source = {source}"
            yield f"  more = {shlex.join(build.flags)}"
            yield f"  language = {'-x c++' if source.endswith('.cu') else ''}"

    def made(rule: str, what: str, build: Build, sources: Iterable[str]) -> Iterator[str]:
        objects = [f"{build.name}/{source}.o" for source in sources]
        own = rule == "link" and (build.library or build.loops)
        linked = [*objects, str(library())] if own else objects
        yield f"build {build.name}/{what}: {rule} {' '.join(linked)}"
        yield f"  build = {build.name}\n  more = {shlex.join(build.flags)}"

    for program in programs:
        for build in program.builds:
            sources = program.sources_for(build)
            yield from compiled(sources, build)
            yield from made("link", program.name, build, sources)
    for build in (SHIM, SHIM_OPTIMIZED):
        sources = [f"units/{name}.cpp" for name in build.without_loops(layer_units())]
        sources += [str(path.relative_to(ROOT)) for path in native_build.cuda_sources()]
        yield from compiled(sources, build)
        yield from made("archive", SHIM_LIBRARY, build, sources)
    yield ""


_made: set[str] = set()


def make(wanted: Iterable[tuple[str, Build]], *, quiet: bool = True) -> None:
    """Build programs in one run of ninja, each only once per process.

    Args:
        wanted: names and builds; of programs, or `SHIM_LIBRARY`.
        quiet: True if the compilers' output is kept for an error, False if it is shown.

    Raises:
        RuntimeError: with the compilers' output, if it was kept.
    """
    wanted = list(wanted)
    targets = sorted({f"{build.name}/{name}" for name, build in wanted} - _made)
    if not targets:
        return
    output = subprocess.PIPE if quiet else None
    if any(build.library or build.loops for _, build in wanted):
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
    """Return a program, or `SHIM_LIBRARY`, built if it was not.

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

    Addresses are not random under ThreadSanitizer, whose older runtimes refuse the layout of newer
    kernels. Other programs keep random ones, as sandboxes may forbid the system call.

    Args:
        program: of `get`.
        arguments: its own.
        control: a rule to leave out, as csrc/core/control.h names it.
        environment: variables besides those of this process.
        timeout: seconds.
    """
    fixed = watched(program) and shutil.which("setarch")
    prefix = ["setarch", platform.machine(), "-R"] if fixed else []
    sanitizers = {
        "TSAN_OPTIONS": "exitcode=66 history_size=4",
        "ASAN_OPTIONS": "detect_leaks=1 exitcode=67",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    chosen = {"FC_CONTROL": control} if control else {}
    return subprocess.run(
        [*prefix, str(program), *arguments],
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
    assert "ThreadSanitizer" not in result.stdout, result.stdout[-6000:]
    return result.stdout


def check_failure(program: Path, *arguments: str, says: str, **options: object) -> str:
    """Run a program that must fail and say something, and return its output."""
    result = run(program, *arguments, **options)  # type: ignore[arg-type]
    assert result.returncode != 0 and says in result.stdout, result.stdout[-6000:]
    return result.stdout


def races(output: str) -> list[str]:
    """Return where ThreadSanitizer reported data races: a line of its summary for each."""
    return [line for line in output.splitlines() if "SUMMARY: ThreadSanitizer: data race" in line]


if __name__ == "__main__":
    make(needed({program.test for program in PROGRAMS}), quiet=False)
