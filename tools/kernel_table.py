"""Registers, shared memory, stack and spills of every CUDA kernel.

Builds the layers below torch for `ARCHITECTURES`, unless ``make gpu-build`` has done so,
reads the reports of ``ptxas -v``, and writes ``docs/kernels.md``: a row for each kernel
template and architecture, with the least and the most over its instantiations. Needs nvcc and
c++filt, no GPU::

    python tools/kernel_table.py            # takes minutes
    python tools/kernel_table.py --check    # exit status 1 if the table names other kernels
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import cuda_toolkit
import native_build

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "kernels.md"
ARCHITECTURES = ";".join(cuda_toolkit.DEFAULT_ARCHITECTURES) + "+PTX"
HEADER = """# CUDA kernels

Written by `python tools/kernel_table.py` with CUDA {release}; do not edit. A row stands for one
kernel template on one architecture, "a to b" for the least and the most over its instantiations.
Bytes of shared memory a block, of stack and of spills a thread; the last two should be 0.

| kernel | source | instantiations | sm | registers | shared memory | stack | spilled |
|---|---|---|---|---|---|---|---|
"""
ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


@dataclass
class Usage:
    """Resources that one kernel takes on one architecture.

    Registers are per thread. Shared memory is in bytes per block, stack and spills in bytes per
    thread.
    """

    registers: int = 0
    shared: int = 0
    stack: int = 0
    spilled: int = 0


def kernels_in(text: str) -> set[str]:
    """Return the names of the kernels that a source defines."""
    return set(re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(", text))


def kernels_in_table(text: str) -> set[str]:
    """Return the names of the kernels in the first column of the table."""
    return set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))


def parse(report: str) -> dict[tuple[str, str], Usage]:
    """Return usage by (mangled name, architecture) from what ``ptxas -v`` prints.

    The report of a kernel begins with its name and ends before the next one; the functions that it
    calls come in between.
    """
    found: dict[tuple[str, str], Usage] = {}
    usage = Usage()
    for line in report.splitlines():
        if entry := ENTRY.search(line):
            usage = found[entry[1], entry[2]] = Usage()
        if frame := FRAME.search(line):
            usage.stack = max(usage.stack, int(frame[1]))
            usage.spilled = max(usage.spilled, int(frame[2]), int(frame[3]))
        if used := USED.search(line):
            usage.registers = max(usage.registers, int(used[1]))
        if shared := SHARED.search(line):
            usage.shared = int(shared[1])
    return found


def demangled(names: Iterable[str]) -> list[str]:
    """Return the bare names of kernels, without namespaces, arguments and template arguments."""
    lines = subprocess.run(
        ["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True
    ).stdout.splitlines()
    bare = []
    for line in lines:
        kernel = re.search(r"(\w+)(?:<.*>)?\(", line.replace("(anonymous namespace)::", ""))
        bare.append(kernel[1] if kernel else line)
    return bare


def span(values: Iterable[int]) -> str:
    """Return "least to most", or the one value."""
    every = sorted(set(values))
    return f"{every[0]} to {every[-1]}" if len(every) > 1 else str(every[0])


def rows(source: Path, report: str) -> list[str]:
    """Return the table's lines for one source, from the assembler's report."""
    found = parse(report)
    families: dict[tuple[str, int], list[Usage]] = defaultdict(list)
    names = demangled(mangled for mangled, _ in found)
    for (_, architecture), name, usage in zip(found, names, found.values(), strict=True):
        families[name, int(architecture)].append(usage)
    lines = []
    for (name, number), usages in sorted(families.items()):
        columns = [f"`{name}`", f"`{source.relative_to(ROOT)}`", str(len(usages))]
        columns += [str(number), span(usage.registers for usage in usages)]
        columns += [span(usage.shared for usage in usages), span(usage.stack for usage in usages)]
        columns += [span(usage.spilled for usage in usages)]
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def check() -> int:
    """Return 0 if the committed table names the kernels of the sources, and no others."""
    defined = set().union(
        *(kernels_in(path.read_text()) for path in native_build.CSRC.rglob("*.[ch]*"))
    )
    listed = kernels_in_table(TABLE.read_text()) if TABLE.exists() else set()
    if defined == listed:
        return 0
    print(f"{TABLE.relative_to(ROOT)} lists {sorted(listed)}, the sources have {sorted(defined)}")
    print("Type: python tools/kernel_table.py")
    return 1


def main() -> None:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description="The table of CUDA kernels in docs/kernels.md.")
    parser.add_argument("--check", action="store_true", help="compare names only; needs no nvcc")
    if parser.parse_args().check:
        raise SystemExit(check())
    home = cuda_toolkit.find_cuda_home()
    if home is None:
        raise SystemExit(
            "kernel_table: nvcc is missing. Install the CUDA toolkit or set CUDA_HOME."
        )
    cuda = native_build.Cuda(home, cuda_toolkit.gencode_options(ARCHITECTURES))
    built = native_build.build_library(cuda).parent
    version = subprocess.run([cuda.nvcc, "--version"], check=True, capture_output=True, text=True)
    release = re.search(r"release ([\d.]+)", version.stdout)
    lines = []
    for source in native_build.cuda_sources():
        lines += rows(source, (built / f"{source.relative_to(ROOT)}.o.log").read_text())
    text = HEADER.format(release=release[1] if release else "of unknown release")
    TABLE.write_text(text + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
