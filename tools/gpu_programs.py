"""The C++ programs that a GPU runs: those of ``tests/cpp``, and the benchmark of the kernels.

They lie in ``build/gpu``, with a record of the sources and the architectures that they were made
from. They can be compiled where there is no GPU, and carried to where there is one: they need the
driver and the C library, nothing else (static cudart, static libstdc++)::

    python tools/gpu_programs.py --architectures "9.0"    # does nothing if they fit

Carried programs serve if their record fits and they start; else they are compiled again, which
needs nvcc, g++ and ninja.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cuda_toolkit
import native_build
import source_digest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "gpu"
RECORD = "programs.json"
MOST_BYTES = 64 << 20  # together: so that they can be carried
TESTS = (
    *("multi_copy", "multi_reduce", "multi_combine", "multi_gradient"),
    *("device_set", "exchange", "peer_collectives", "peer_soak"),
)
BENCHMARK = "cuda_kernels"
NEEDS_NO_DEVICE = ("multi_copy", "refused")  # a program and its case
_SOURCES = (
    *(f"csrc/{layer}" for layer in native_build.LAYERS),
    *("tests/cpp", "benchmarks/cpp", "tools/native_build.py", "tools/cuda_toolkit.py"),
    "tools/gpu_programs.py",
)


def source_of(name: str) -> str:
    """Return a program's source in the repository."""
    return f"benchmarks/cpp/{name}.cu" if name == BENCHMARK else f"tests/cpp/shim_{name}_test.cpp"


def record_for(architectures: str) -> dict[str, str]:
    """Return the record that programs made here and now would get."""
    return {"sources": source_digest.digest(_SOURCES), "architectures": architectures}


def why_not(architectures: str, folder: Path = FOLDER) -> str | None:
    """Return why the programs in ``folder`` cannot be used, None if they can."""
    try:
        record = json.loads((folder / RECORD).read_text())
    except FileNotFoundError:
        return "they have not been compiled"
    wanted = record_for(architectures)
    if record.get("sources") != wanted["sources"]:
        return "their sources have changed"
    covered = record.get("architectures", "").split(";")
    if lacking := [one for one in architectures.split(";") if one not in covered]:
        return f"they were compiled for {record.get('architectures')}, not for {lacking[0]}"
    name, case = NEEDS_NO_DEVICE
    try:
        done = subprocess.run([folder / name, case], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"they do not start here: {error}"
    if done.returncode != 0:
        return f"they do not start here: {(done.stderr or done.stdout).strip()[-300:]}"
    return None


def link_command(
    cuda: native_build.Cuda, program: Path, source: str, optimize: str = "-O1"
) -> list[str]:
    """Return the command that compiles a program for devices and links it with the library."""
    command = [cuda.nvcc, "-std=c++17", optimize, "-fmad=false", *cuda.gencode, "-DFC_WITH_CUDA=1"]
    command += [f"-I{ROOT / folder}" for folder in ("csrc", "tests/cpp")]
    command += ["-x", "cu", str(ROOT / source), "-o", str(program), "-cudart=static"]
    command += cuda_toolkit.compression_options(cuda.home)
    command += [f"-L{native_build.library_dir(cuda)}", "-lfastcomm_native", "-Xlinker", "-s"]
    return [*command, "-Xcompiler", "-pthread,-static-libstdc++,-static-libgcc"]


def build(architectures: str, folder: Path = FOLDER, home: str | None = None) -> None:
    """Compile all programs, side by side, with the toolkit in ``home`` if told.

    Raises:
        SystemExit: nvcc is missing, a source does not compile, or the programs are too large to be
            carried.
    """
    home = home or cuda_toolkit.find_cuda_home()
    if home is None:
        raise SystemExit("gpu_programs: nvcc is missing. Install the CUDA toolkit or set CUDA_HOME")
    cuda = native_build.Cuda(home, cuda_toolkit.gencode_options(architectures))
    record = record_for(architectures)
    native_build.build_library(cuda)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).unlink(missing_ok=True)

    def link(name: str) -> str:
        optimize = "-O3" if name == BENCHMARK else "-O1"
        command = link_command(cuda, folder / name, source_of(name), optimize)
        done = subprocess.run(command, capture_output=True, text=True)
        return "" if done.returncode == 0 else f"{' '.join(command)}\n{done.stdout}{done.stderr}"

    jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        errors = [text for text in pool.map(link, (*TESTS, BENCHMARK)) if text]
    if errors:
        raise SystemExit("\n".join([*errors, "gpu_programs: not all of them compile, see above"]))
    size = sum((folder / name).stat().st_size for name in (*TESTS, BENCHMARK))
    if size > MOST_BYTES:
        raise SystemExit(
            f"gpu_programs: {size >> 20} MiB for {architectures}, of which {MOST_BYTES >> 20} can "
            "be carried: choose fewer architectures"
        )
    (folder / RECORD).write_text(json.dumps(record) + "\n")
    print(f"{folder}: {size >> 20} MiB for {architectures}")


def ensure(architectures: str, folder: Path = FOLDER, home: str | None = None) -> dict[str, Path]:
    """Return the paths of all programs, compiled first where those in ``folder`` do not serve."""
    with native_build.locked(folder):
        if reason := why_not(architectures, folder):
            print(f"compiling the programs for {architectures}: {reason}", flush=True)
            build(architectures, folder, home)
    return {name: folder / name for name in (*TESTS, BENCHMARK)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile the programs for the architectures of the command line, unless they are there."""
    parser = argparse.ArgumentParser(description="Compile the programs that a GPU runs.")
    parser.add_argument("--architectures", default="9.0", help="such as 9.0 (default) or 8.0;9.0")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    programs = ensure(options.architectures, options.folder.resolve())
    print(f"{len(programs)} programs for {options.architectures} in {options.folder}")


if __name__ == "__main__":
    main()
