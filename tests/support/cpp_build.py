"""Compile torch-free C++ tests into a cached folder, and run them.

Objects lie in ``build/tests/<key>``, where the key stands for compiler and flags, so that tests
which agree on flags share the objects of the library's sources, and a second run compiles nothing.
Only g++ (or ``$CXX``) and ninja are needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import native_build  # noqa: E402

COMMON = ["-Wall", "-Wextra", "-pthread", "-fno-omit-frame-pointer", *native_build.NUMERIC_FLAGS]
PLAIN = ["-O2"]
# -Wno-tsan: fences order the sleeping of doorbell.h only, never data.
TSAN = ["-O1", "-g1", "-fsanitize=thread", "-Wno-tsan"]
ASAN = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


@dataclass
class Program:
    """A linked test and the objects that it consists of, by source."""

    path: Path
    objects: dict[str, Path] = field(default_factory=dict)


def native_sources(*, variants: bool) -> list[str]:
    """Return the sources below torch that need no CUDA.

    Without ``variants`` only the portable instruction set.
    """
    return [
        str(source.relative_to(ROOT))
        for source in native_build.native_sources()
        if not native_build.needs_cuda(source)
        and (variants or native_build.variant_of(source) is None)
    ]


def build(
    name: str,
    sources: Sequence[str],
    flags: Sequence[str],
    link_with: Sequence[Path] = (),
) -> Program:
    """Compile ``sources`` (paths in the repository) and link them.

    Args:
        name: of the program.
        sources: one may be for an instruction set of its own, as ``tools/native_build.py`` tells;
            a CUDA source is compiled as C++, for the execution shim (``-DFC_SHIM``).
        flags: for compiler and linker.
        link_with: objects of another build; where both define a function, this build's wins.

    Raises:
        RuntimeError: with the compiler's output.
    """
    command = native_build.compiler()
    paths = [ROOT / source for source in sources]
    macros = [f"-D{macro}=1" for macro in native_build.variant_macros(paths)]
    every = [
        *native_build.standard_flags(command),
        *(f"-I{ROOT / folder}" for folder in ("csrc", "tests/cpp")),
        *(*COMMON, *macros, *flags),
    ]
    key = hashlib.sha256(shlex.join([*command, *every]).encode()).hexdigest()[:12]
    folder = ROOT / "build" / "tests" / key
    folder.mkdir(parents=True, exist_ok=True)
    program = Program(folder / name)
    lines = [
        "builddir = .",
        f"rule cxx\n  command = {shlex.join([*command, *every])} -MMD -MF $out.d $variant -c $in "
        "-o $out\n  depfile = $out.d\n  deps = gcc",
        f"rule link\n  command = {shlex.join([*command, *every])} $in -o $out",
    ]
    for source, path in zip(sources, paths, strict=True):
        variant = native_build.variant_of(path)
        program.objects[source] = folder / f"{source}.o"
        lines.append(f"build {source}.o: cxx {path}")
        language = ["-x", "c++"] if path.suffix == ".cu" else []
        lines.append(f"  variant = {shlex.join([*(variant[1] if variant else []), *language])}")
    objects = [*(f"{source}.o" for source in sources), *map(str, link_with)]
    lines += [f"build {name}: link {' '.join(objects)}", ""]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ninja_file = folder / f"{name}.ninja"
        ninja_file.write_text("\n".join(lines))
        result = subprocess.run(
            [native_build.find_ninja(), "-C", str(folder), "-f", ninja_file.name, name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
        )
    if result.returncode != 0:
        raise RuntimeError(result.stdout)
    return program


def run(
    program: Program,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a program; its output is in ``stdout``, sanitizers' reports too.

    Addresses are not random: older runtimes of ThreadSanitizer refuse the layout that newer kernels
    choose.
    """
    fixed = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    sanitizers = {
        "TSAN_OPTIONS": "exitcode=66 history_size=4",
        "ASAN_OPTIONS": "detect_leaks=1 exitcode=67",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return subprocess.run(
        [*fixed, str(program.path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env={**os.environ, **sanitizers, **(environment or {})},
    )


def check(program: Program, *arguments: str, **options: object) -> str:
    """Run a program that must succeed, and return its output."""
    result = run(program, *arguments, **options)  # type: ignore[arg-type]
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


def races(output: str) -> list[str]:
    """Where ThreadSanitizer reported a data race: one line of its summary each."""
    return [line for line in output.splitlines() if "SUMMARY: ThreadSanitizer: data race" in line]
