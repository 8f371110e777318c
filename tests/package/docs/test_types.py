"""Examples pass ``mypy --strict``, and mistakes in the use of public names do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import ENDS

ROOT = Path(__file__).resolve().parents[3]
# torch's sources take most of a minute: its names are Any here, as are those of what is optional.
CONFIGURATION = """
[mypy]
strict = True
python_version = 3.10
disallow_subclassing_any = False
[mypy-torch.*]
follow_imports = skip
[mypy-accelerate.*,lightning.*,transformers.*]
follow_imports = skip
ignore_missing_imports = True
[mypy-fastcomm.*]
follow_imports = silent
"""
# Lines with "wrong" are errors, the others are not.
USES = """
import torch
import fastcomm
from fastcomm import nothing  # wrong
from fastcomm.nn.parallel import DataParallel, DistributedDataParallel

fastcomm.nothing  # wrong
fastcomm.fused_all_reduce([])  # wrong
fastcomm.nn.parallel.DataParalel  # wrong
fastcomm.explain("all_reduce", count="many")  # wrong
fastcomm.explain(1)  # wrong
fastcomm.explain("all_reduce").native
fastcomm.explain("all_reduce").nativ  # wrong
fastcomm.errors.PeerLost  # wrong
fastcomm.empty  # public names of all kinds
fastcomm.PeerLostError, fastcomm.optim, fastcomm.amp, fastcomm.comm, fastcomm.__version__.upper()
with fastcomm.use():
    pass
model = DataParallel(torch.nn.Linear(2, 2), ["cpu", "cpu"])
places: list[int | str] = model.device_ids
numbers: list[int] = model.device_ids  # wrong
place: int | str = model.output_device
number: int = model.output_device  # wrong
result = fastcomm.fused_all_reduce_([torch.ones(2)])
print(result.total_norm.item(), result.found_inf.item())
if result.total_norm is None:
    print("no norm")
result.total_nrom  # wrong
ddp = DistributedDataParallel(torch.nn.Linear(2, 2), max_norm=1.0)
print(ddp.result().total_norm.item())
DistributedDataParallel(torch.nn.Linear(2, 2), max_norm="1")  # wrong
"""


def examples() -> dict[str, str]:
    """Return the whole scripts of README.md and docs/, by a name for a file."""
    files = sorted((ROOT / "docs" / "examples").glob("*.py"))
    return {f"examples_{path.stem}": path.read_text() for path in files} | {
        f"{page.stem}_{name}".replace("-", "_").lower(): code
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        for code in re.findall(r"```python\n(# \w+\.py.*?)```", page.read_text(), re.DOTALL)
        for name in re.findall(r"# (\w+)\.py", code)[:1]
    }


def test_examples_and_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    codes = {**examples(), "uses": USES}
    assert len(codes) > 5
    for name, code in codes.items():
        (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    cache = ROOT / "build" / "mypy-examples"
    words = ["--config-file", "mypy.ini", "--cache-dir", str(cache), "--no-pretty"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, *(f"{name}.py" for name in codes)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=ENDS,
        check=False,
    )
    found = {
        (file, int(line))
        for file, line in re.findall(r"^(\S+?):(\d+): error: ", done.stdout, re.MULTILINE)
    }
    wrong = {
        ("uses.py", number)
        for number, line in enumerate(USES.splitlines(), 1)
        if line.endswith("# wrong")
    }
    assert found == wrong, done.stdout + done.stderr
