"""What nvcc makes of the CUDA sources, without a GPU: PTX, SASS, the report, linked programs.

No kernel is compiled for these tests alone: the library of the CUDA flavour has all of them, and
what its build leaves beside the objects is read here (tools/native_build.py). Where the installed
flavour has no CUDA, that library is built for one architecture.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import cuda_toolkit  # noqa: E402
import gpu_programs  # noqa: E402
import native_build  # noqa: E402

ARCHITECTURE = "9.0"  # compiled for where the flavour has no CUDA; read where there are several


def find_home() -> str | None:
    """Return the folder of the toolkit: the installed one, else what `make test` took from PyPI."""
    packaged = Path(sys.prefix, "nvcc", "nvidia", "cu13")
    fallback = str(packaged) if (packaged / "bin" / "nvcc").exists() else None
    return cuda_toolkit.find_cuda_home() or fallback


HOME = find_home()
WHY_NONE = "no nvcc: no CUDA toolkit is installed, and `make test` could not take it from PyPI"


def find_disassembler() -> str | None:
    """Return the path of nvdisasm: the toolkit's, or that of PyPI's package."""
    if HOME is not None and (found := shutil.which("nvdisasm", path=f"{HOME}/bin")):
        return found
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == "nvdisasm"), None)


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


def _kept(source: str, suffix: str) -> Path:
    """Return a file that the build of a source has kept."""
    found = sorted((library().parent / f"{source}.o.kept").glob(f"*.{suffix}"))
    name = f"_{ARCHITECTURE.replace('.', '')}"
    return next((path for path in found if name in path.name), found[0])


def ptx_of(source: str) -> str:
    """Return the PTX of a source in the repository."""
    return _kept(source, "ptx").read_text()


@functools.cache
def sass_of(source: str) -> str:
    """Return what the assembler makes of that PTX, disassembled."""
    command = [str(find_disassembler()), "-c", str(_kept(source, "cubin"))]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def frames(source: str) -> list[tuple[int, int]]:
    """Return (bytes of stack, bytes spilled) of every function of a source."""
    report = (library().parent / f"{source}.o.log").read_text()
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report)
    return [(int(stack), int(spilled)) for stack, spilled in found]


def programs() -> dict[str, Path]:
    """Return the C++ tests and benchmarks that a GPU runs, for the first architecture."""
    return gpu_programs.ensure(architectures().split(";")[0].removesuffix("+PTX"), home=HOME)


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


@dataclass(frozen=True)
class Syntax:
    """Patterns of a language of instructions.

    Attributes:
        function: the place before a function's first line.
        label: a line that names a block.
        jump: one that jumps, with its condition, None without, and its target.
        end: one that ends the function, whatever the condition.
        unknown: one that may go anywhere.
    """

    function: str
    label: str
    jump: str
    end: str
    unknown: str


PTX = Syntax(
    function=r"^(?=.*\.(?:entry|func)\b)",
    label=r"(\$\w+):",
    jump=r"\s*(@!?%\w+\s+)?bra(?:\.uni)?\s+(\$\w+)",
    end=r"\s*(?:ret|trap|exit);",
    unknown=r"\bbrx\b",
)
SASS = Syntax(
    function=r"^(?=\.text\.)",
    label=r"(\.L\w+):",
    # Of some jumps the condition is in their name.
    jump=r"\s*/\*\w+\*/\s+(@!?U?P\w+\s+|(?=BRA\.(?:DIV|CONV)))?BRA[^`;]*`\((\.L\w+)\)",
    end=r"\s*/\*\w+\*/\s+(?:EXIT|RET)\b",
    unknown=r"\b(?:BRX|JMX)\b",
)


def _blocks(function: str, syntax: Syntax) -> list[tuple[str, str, list[str]]]:
    """Return the basic blocks of a function: label, text, and labels of what may follow."""
    blocks: list[tuple[str, str, list[str]]] = []
    label, lines = "", list[str]()

    def end(following: list[str]) -> None:
        nonlocal label
        blocks.append((label, "\n".join(lines), following))
        lines.clear()
        label = f"after {len(blocks)}"

    for line in function.splitlines():
        if named := re.match(syntax.label, line):
            end([named[1]])
            label = named[1]
        lines.append(line)
        if jump := re.match(syntax.jump, line):
            further = f"after {len(blocks) + 1}"
            end([jump[2]] if jump[1] is None else [jump[2], further])
        elif re.match(syntax.end, line):
            end([])
        else:
            assert not re.search(syntax.unknown, line), f"a jump that is not followed here: {line}"
    end([])
    return blocks


def innermost_loops(code: str, syntax: Syntax = PTX) -> list[str]:
    """Return the text of every loop that has no loop in it."""
    found: list[str] = []
    for function in re.split(syntax.function, code, flags=re.MULTILINE):
        blocks = _blocks(function, syntax)
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
