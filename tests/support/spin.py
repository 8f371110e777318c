"""Run spin's verifier on a model in ``tests/model``, over all states or until the first error."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.patience import ENDS

MODELS = Path(__file__).resolve().parents[1] / "model"
MEMORY_MB = 1900
# What pan prints if it has not seen every state.
INCOMPLETE = ["Search not completed", "max search depth too small", "MEMLIM", "out of memory"]


@dataclass
class Search:
    """What the verifier says about one search."""

    output: str
    errors: int
    states: int
    depth: int
    seconds: float
    error: str = ""  # its kind and condition
    trail: str = ""  # the last steps that lead to it
    unreached: set[str] = field(default_factory=set)  # statements that no run reaches

    @property
    def complete(self) -> bool:
        return not any(words in self.output for words in INCOMPLETE)

    def summary(self) -> str:
        found = f"{self.errors} errors {self.error}".rstrip()
        whole = "complete" if self.complete else "not complete"
        return f"{self.states} states, depth {self.depth}, {self.seconds:.1f} s, {whole}, {found}"


def need_spin() -> None:
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: the models cannot be checked (Debian package spin)")


def _run(command: Sequence[str], folder: Path, timeout: float = ENDS) -> str:
    result = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert result.returncode == 0, f"{command}: {result.stdout[-3000:]}"
    return result.stdout


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match, f"no {pattern!r} in {text[-3000:]}"
    return int(float(match[1]))


def search(
    model: str,
    macros: str,
    folder: Path,
    cycles: bool = False,
    large: bool = False,
    reverse: bool = False,
) -> Search:
    """Search all states of a model.

    Args:
        model: name of a file in ``tests/model``.
        macros: ``-D`` options that select what is modelled.
        folder: an empty one.
        cycles: look for endless runs, instead of failed assertions and stuck ranks.
        large: has so many states that the verifier should be optimized.
        reverse: try transitions in the opposite order; all states are the same ones, but what is
            wrong is often found among the first.
    """
    for source in MODELS.glob("*.pml"):
        shutil.copy(source, folder)
    _run(["spin", "-a", *macros.split(), model], folder)
    kind = "-DNP" if cycles else "-DSAFETY"
    pan = ["gcc", "-O1" if large else "-O0", "-w", kind, "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}"]
    pan += ["-DT_REVERSE"] * reverse
    _run([*pan, "-o", "pan", "pan.c"], folder)
    # By default the table of states is so large that clearing it takes longer than most searches.
    limits = ["-m100000", "-w22" if large else "-w20"]
    output = _run(["./pan", *(["-l"] if cycles else []), *limits], folder, timeout=ENDS)
    result = Search(
        output,
        errors=_number(r"errors: (\d+)", output),
        states=_number(r"([\d.e+]+) states, stored", output),
        depth=_number(r"depth reached (\d+)", output),
        seconds=float((re.findall(r"elapsed time ([\d.]+) seconds", output) or ["0"])[0]),
    )
    if result.errors:
        result.error = re.findall(r"^pan:\d+: (.*)", output, re.MULTILINE)[0]
        steps = _run(["spin", "-t", "-p", *macros.split(), model], folder).splitlines()
        result.trail = "\n".join(line for line in steps if re.match(r" *\d+:\tproc", line))[-5000:]
    # "flag_protocol.pml:112, state 309, "q = 0"", below "unreached in proctype Rank"
    for part in output.split("unreached in ")[1:]:
        owner, *lines = part.split("\n\n")[0].splitlines()
        result.unreached |= {f"{owner}: {line.strip()}" for line in lines if ", state " in line}
    return result
