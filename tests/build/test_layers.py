"""Includes point down only: bindings, {ops, c10d}, {tensors, engines, devices}, coll, and so on.

Within c10d, too: edge, choose, engines, works, requests, life. No folders, files, or pairs of a
header and its source include each other in a circle.

The layer tensors is what ops and c10d share of torch.

Kernels may see the views of transport, whose flags an executor publishes and waits for; transport
never sees what runs on the data.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

BELOW = {
    "nlohmann": set(),  # in place of a library that torch's headers include
    "core": set(),
    "transport": {"core"},
    "kernels": {"transport", "core"},
    "coll": {"kernels", "transport", "core"},
    "engines": {"coll", "kernels", "transport", "core"},
    "devices": {"coll", "kernels", "transport", "core"},
    "tensors": {"coll", "kernels", "transport", "core"},
    "c10d": {"tensors", "engines", "coll", "kernels", "transport", "core"},
    "ops": {"tensors", "devices", "coll", "kernels", "transport", "core"},
}
BELOW["bindings"] = set(BELOW)
# Rooms of c10d, from the top, and engines, which are beside each other; what each may not include.
# That of several hosts stands before the one that serves the group as a whole, and sees it.
ROOMS = ["edge", "choose", "engines", "works", "requests", "life"]
ENGINES = ["native", "delegate", "cuda", "hosts"]
SEEN_BY = {"hosts": ["delegate"]}
HIDDEN = {f"c10d/{room}": ROOMS[:place] for place, room in enumerate(ROOMS)}
HIDDEN |= {
    f"c10d/engines/{one}": [
        f"engines/{other}" for other in ENGINES if other not in (one, *SEEN_BY.get(one, []))
    ]
    for one in ENGINES
}
SEES_TORCH = {"tensors", "c10d", "ops", "bindings"}
TORCH_HEADER = re.compile(r"(torch|ATen|c10|pybind11)/|Python\.h$")
PYBIND_HEADER = re.compile(r"pybind11/|torch/extension\.h$|torch/csrc/utils/pybind\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
SOURCES = {".h", ".inc", ".hpp", ".cuh", ".cpp", ".cu"}


def violations(csrc: Path) -> list[str]:
    """Return one line for each include that points up, sideways, or at torch from below it."""
    found = []
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in SOURCES):
        relative = path.relative_to(csrc)
        layer = relative.parts[0]
        if layer not in BELOW:
            found.append(f"{relative}: belongs to no layer")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            include = INCLUDE.match(line)
            reason = include and reason_against(layer, path, include.group(1), csrc)
            if reason:
                found.append(f"{relative}:{number}: {reason}")
    return found


def reason_against(layer: str, path: Path, target: str, csrc: Path) -> str | None:
    """Return why a file of ``layer`` may not include ``target``, None where it may."""
    if TORCH_HEADER.match(target) and layer not in SEES_TORCH:
        return f"{layer} is below torch and includes {target}"
    if PYBIND_HEADER.match(target) and layer != "bindings":
        return f"only bindings may see pybind11, {layer} includes {target}"
    resolved = next(
        (base / target for base in (path.parent, csrc) if (base / target).is_file()), None
    )
    if resolved is None:
        first = target.split("/")[0]
        return f"{target} does not exist" if first in BELOW and first != "c10d" else None
    other = resolved.resolve().relative_to(csrc.resolve()).parts[0]
    if other != layer and other not in BELOW[layer]:
        return f"{layer} includes {target} of {other}, which is not below it"
    return None


@pytest.mark.parametrize("room", HIDDEN)
def test_rooms_of_c10d_see_those_below(root: Path, room: Any) -> None:
    sources = list((root / "csrc" / room).rglob("*.*"))
    assert sources
    for path, other in itertools.product(sources, HIDDEN[room]):
        assert f'"c10d/{other}/' not in path.read_text(), path


def test_includes_point_down(root: Path) -> None:
    assert violations(root / "csrc") == []


def circle(csrc: Path, part: Callable[[Path], Path]) -> list[str]:
    """Return parts that include each other in a circle, none where there is none.

    ``part`` says of which part a file of ``csrc`` is.
    """
    graph = TopologicalSorter[str]()
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in SOURCES):
        own = str(part(path.relative_to(csrc)))
        for target in filter(None, map(INCLUDE.match, path.read_text().splitlines())):
            for base in (path.parent, csrc):
                found = (base / target.group(1)).resolve()
                if found.is_file():
                    other = str(part(found.relative_to(csrc.resolve())))
                    graph.add(own, *([other] if other != own else []))
                    break
    try:
        graph.prepare()
    except CycleError as error:
        return error.args[1]
    return []


PARTS = {"files": Path, "pairs": lambda path: path.with_suffix(""), "folders": lambda p: p.parent}


@pytest.mark.parametrize("parts", PARTS)
def test_nothing_includes_itself_in_a_circle(root: Path, parts: Any) -> None:
    assert circle(root / "csrc", PARTS[parts]) == []


@pytest.mark.parametrize(
    ("parts", "includes"),
    [
        ("files", {"a/x.h": "a/y.h", "a/y.h": "a/x.h"}),
        ("pairs", {"a/x.h": "", "a/x.cpp": "a/y.h", "a/y.h": "a/x.h"}),
        ("folders", {"a/x.h": "a/b/y.h", "a/b/y.h": "", "a/b/z.h": "x.h", "a/b/x.h": "a/w.h"}),
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, parts: Any, includes: Any) -> None:
    for name in {"a/w.h", *includes}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        target = includes.get(name)
        (tmp_path / name).write_text(f'#include "{target}"\n' if target else "")
    assert circle(tmp_path, PARTS[parts])
    assert not circle(tmp_path, lambda path: path) or parts == "files"


@pytest.mark.parametrize(
    ("path", "line", "reason"),
    [
        ("core/a.cpp", '#include "coll/plan.h"', "core includes coll/plan.h of coll"),
        ("core/a.cpp", '#include "../coll/plan.h"', "core includes ../coll/plan.h of coll"),
        ("transport/a.cu", '#  include "kernels/sum.h"', "transport includes kernels/sum.h"),
        ("ops/a.cpp", '#include "c10d/work.h"', "ops includes c10d/work.h of c10d"),
        ("engines/cuda/a.cu", "#include <ATen/ATen.h>", "engines is below torch"),
        ("transport/shm/a.h", "#include <c10/util/Exception.h>", "transport is below torch"),
        ("core/a.cpp", "#include <pybind11/pybind11.h>", "core is below torch"),
        ("c10d/a.cpp", "#include <torch/extension.h>", "only bindings may see pybind11"),
        ("core/a.cpp", '#include "coll/gone.h"', "coll/gone.h does not exist"),
        ("extra/a.cpp", "", "belongs to no layer"),
    ],
)
def test_checker_reports_a_planted_violation(
    tmp_path: Path, path: Any, line: Any, reason: Any
) -> None:
    for name in ("coll/plan.h", "kernels/sum.h", "c10d/work.h", path):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / path).write_text(f"#pragma once\n{line}\n")
    found = violations(tmp_path)
    assert len(found) == 1 and reason in found[0]


def test_checker_accepts_what_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "types.h").write_text('#include "numeric.h"\n#include <vector>\n')
    (tmp_path / "core" / "numeric.h").touch()
    (tmp_path / "bindings").mkdir()
    module = tmp_path / "bindings" / "module.cpp"
    module.write_text('#include <torch/extension.h>\n#include "core/types.h"')
    assert violations(tmp_path) == []
