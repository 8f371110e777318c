"""Everything that a GPU must show, on a machine that has one: ``make gpu-check``.

Builds with what is installed (torch with CUDA, nvcc, ninja, setuptools, pytest; nothing is
fetched), runs ``pytest -m gpu``, then the GPU benchmarks, whose JSON lines go to a folder::

    python tools/gpu_check.py --out benchmarks/results
    python tools/gpu_check.py --steps build,benchmark

Every step runs even if one before it failed; the exit status says whether all went well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cuda_toolkit

ROOT = Path(__file__).resolve().parent.parent
BENCHMARK = [
    "benchmarks/cpp/cuda_kernels.cu",
    "csrc/kernels/cuda/multi_copy.cu",
    "csrc/kernels/cuda/multi_reduce.cu",
    "csrc/core/error.cpp",
]
LARGE = 16 << 20  # from here on the memory sets the pace


def step(name: str, command: list[str], **environment: str) -> bool:
    """Run one command in the project's folder; tells how it went."""
    print(f"\n==== {name}: {' '.join(command)}", flush=True)
    begin = time.monotonic()
    try:
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode
    except FileNotFoundError as error:
        print(f"==== {name}: {error}", flush=True)
        return False
    print(f"==== {name}: exit status {status} after {time.monotonic() - begin:.0f} s", flush=True)
    return status == 0


def benchmark(cuda_home: str, out: Path) -> bool:
    """Compile and run the benchmark of the kernels, keep its records, and sum them up."""
    program = ROOT / "build" / "cuda_kernels"
    program.parent.mkdir(exist_ok=True)
    nvcc = str(Path(cuda_home, "bin", "nvcc"))
    flags = ["-std=c++17", "-O3", "-fmad=false", "-arch=native", "-Icsrc", "-o", str(program)]
    if not step("compile the benchmark", [nvcc, *flags, *BENCHMARK]):
        return False
    print("\n==== the benchmark", flush=True)
    result = subprocess.run([str(program)], stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        print(f"==== the benchmark: exit status {result.returncode}", flush=True)
        return False
    records = [json.loads(line) for line in result.stdout.splitlines()]
    slug = re.sub(r"[^a-z0-9]+", "-", records[0]["device"].lower()).strip("-")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"cuda-kernels-{slug}.jsonl"
    path.write_text(result.stdout)
    print(f"wrote {path}\n" + "\n".join(summary(records)), flush=True)
    return True


def against_torch(out: Path) -> bool:
    """Measure the primitives of one process against torch's, replicas sharing a GPU."""
    out.mkdir(parents=True, exist_ok=True)
    scripts = {
        "single-process-cuda": ["benchmarks/single_process.py", "--device", "cuda"],
        "fused-reduce-cuda": ["benchmarks/fused_reduce_cuda.py"],
    }
    good = True
    for name, script in scripts.items():
        path = out / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        good = step(name, [sys.executable, *script, "--json", str(path)]) and good
    return good


def summary(records: list[dict[str, Any]]) -> list[str]:
    """Bandwidth of each method from 16 MiB up as a share of a plain device copy's; host times."""
    rows = [row for row in records if row.get("kind") == "bandwidth" and row["bytes"] >= LARGE]
    copies = {row["bytes"]: row["gbps"] for row in rows if row["method"] == "memcpy"}
    lines = [
        f"{row['method']:>20} of {row['sources']}, {row['dtype']:>8}, {row['bytes'] >> 20:5} MiB: "
        f"{row['gbps']:6.0f} GB/s, {100 * row['gbps'] / copies[row['bytes']]:4.0f} % of a copy"
        for row in rows
    ]
    lines += [
        f"{row['method']:>20} of {row['segments']:4} segments: {row['median_us']:6.2f} us a call"
        for row in records
        if row.get("kind") == "launch"
    ]
    return lines


def main() -> int:
    """Run all steps; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--steps", default="build,tests,benchmark", help="which of these to do")
    parser.add_argument("--pytest", default="", help="further arguments of pytest")
    options = parser.parse_args()
    cuda_home = cuda_toolkit.find_cuda_home()
    if cuda_home is None:
        print("nvcc is missing: install the CUDA toolkit or set CUDA_HOME", file=sys.stderr)
        return 1
    steps = options.steps.split(",")
    good = step("the device", ["nvidia-smi"])
    if "build" in steps:
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        good = step("build", build, FASTCOMM_CUDA="1") and good
    if "tests" in steps:
        pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu"]
        good = step("tests", [*pytest, *options.pytest.split()]) and good
    if "benchmark" in steps:
        good = benchmark(cuda_home, options.out) and good
        good = against_torch(options.out) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
