"""What nvcc makes of the CUDA sources, without a GPU: PTX, the assembler's report, linked programs.

No kernel is compiled for these tests alone: the library of the CUDA flavour has all of them, and
what its build leaves beside the objects is read here (tools/native_build.py). Where the installed
flavour has no CUDA, that library is built for one architecture.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import cuda_toolkit  # noqa: E402
import gpu_programs  # noqa: E402
import native_build  # noqa: E402

ARCHITECTURE = "9.0"  # compiled for where the flavour has no CUDA; read where there are several
HOME = cuda_toolkit.find_cuda_home()


def architectures() -> str:
    """Return those of the installed flavour, as in TORCH_CUDA_ARCH_LIST."""
    from fastcomm import _build_info

    return _build_info.CUDA_ARCHITECTURES if _build_info.FLAVOUR == "cuda" else ARCHITECTURE


@functools.cache
def toolkit() -> native_build.Cuda:
    """Return the toolkit, with the architectures of the installed flavour."""
    return native_build.Cuda(str(HOME), cuda_toolkit.gencode_options(architectures()))


@functools.cache
def library() -> Path:
    """Return the layers below torch with CUDA: what the CUDA flavour's ``fastcomm._C`` links."""
    return native_build.build_library(toolkit())


def ptx_of(source: str) -> str:
    """Return the PTX of a source in the repository."""
    found = sorted((library().parent / f"{source}.o.kept").glob("*.ptx"))
    name = f"compute_{ARCHITECTURE.replace('.', '')}"
    return next((path for path in found if name in path.name), found[0]).read_text()


def frames(source: str) -> list[tuple[int, int]]:
    """Return (bytes of stack, bytes spilled) of every function of a source."""
    report = (library().parent / f"{source}.o.log").read_text()
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report)
    return [(int(stack), int(spilled)) for stack, spilled in found]


def programs() -> dict[str, Path]:
    """Return the C++ tests and benchmarks that a GPU runs, for the first architecture."""
    return gpu_programs.ensure(architectures().split(";")[0].removesuffix("+PTX"))


def ordered_accesses(ptx: str) -> set[str]:
    """Return loads and stores that order something or have a scope, and everything atomic."""
    # "bar.red" is a barrier, hence the lookbehind.
    accesses = re.findall(r"(?<![\w.%$])(?:ld|st|atom|red|fence|membar)\.[\w.:]+", ptx)
    scope = re.compile(r"acquire|release|relaxed|volatile|\.(?:sc|gpu|cta|cluster|sys)\b")
    return {name for name in accesses if scope.search(name) or not name.startswith(("ld", "st"))}


def generic_accesses(ptx: str) -> set[str]:
    """Return loads and stores that find out when they run which kind of memory they meet."""
    accesses = re.findall(r"(?<![\w.%$])(?:ld|st|atom|red)\.[\w.:]+", ptx)
    spaces = re.compile(r"\.(?:param|global|shared|local|const)\b")
    return {name for name in accesses if not spaces.search(name)}


def accesses_of_16_bytes(ptx: str) -> set[str]:
    """Return which of "ld" and "st" move packs."""
    wide = r"\b(ld|st)\.(?:global\.)?(?:v4\.[bu]32|v2\.[bu]64|b128)"
    return set(re.findall(wide, ptx))


def _blocks(function: str) -> list[tuple[str, str, list[str]]]:
    """Return the basic blocks of a function's PTX: label, text, and labels of what may follow."""
    blocks: list[tuple[str, str, list[str]]] = []
    label, lines = "", list[str]()

    def end(following: list[str]) -> None:
        nonlocal label
        blocks.append((label, "\n".join(lines), following))
        lines.clear()
        label = f"after {len(blocks)}"

    for line in function.splitlines():
        if named := re.match(r"(\$\w+):", line):
            end([named[1]])
            label = named[1]
        lines.append(line)
        if jump := re.match(r"\s*(@!?%\w+\s+)?bra(?:\.uni)?\s+(\$\w+)", line):
            end([jump[2], f"after {len(blocks) + 1}"] if jump[1] else [jump[2]])
        elif re.match(r"\s*(?:ret|trap|exit);", line):
            end([])
        else:
            assert "brx" not in line, "a jump by a table, which is not followed here"
    end([])
    return blocks


def innermost_loops(ptx: str) -> list[str]:
    """Return the text of every loop that has no loop in it."""
    found: list[str] = []
    for function in re.split(r"^(?=.*\.(?:entry|func)\b)", ptx, flags=re.MULTILINE):
        blocks = _blocks(function)
        order = {label: at for at, (label, _, _) in enumerate(blocks)}
        before: dict[str, list[str]] = {}
        for label, _, following in blocks:
            for each in following:
                before.setdefault(each, []).append(label)
        bodies: dict[str, set[str]] = {}  # by the block in which the loop begins
        for label, _, following in blocks:
            for head in following:
                if order.get(head, len(blocks)) > order[label]:
                    continue
                body = {head}
                to_visit = [label]
                while to_visit:
                    if (block := to_visit.pop()) not in body:
                        body.add(block)
                        to_visit += before.get(block, [])
                if blocks[0][0] not in body:  # else a jump back, but no loop
                    bodies.setdefault(head, set()).update(body)
        for head, body in bodies.items():
            if not any(other in body for other in bodies if other != head):
                found.append("\n".join(blocks[at][1] for at in sorted(order[b] for b in body)))
    return found
