"""The examples in the README and in docs/ run; links between them lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import scripts
from support.patience import ENDS

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "frameworks").glob("*.md"))
PAGES += sorted((ROOT / "docs" / "verification").glob("*.md"))
LONGEST = 130  # lines of the front page
# Of these the start is tested, too; what the others do is run in processes that have torch loaded.
AS_USERS_DO = ("train", "trainer", "notebook", "on_ray")
# An example that imports one of them needs it.
OTHERS = (
    "accelerate", "cloudpickle", "deepspeed", "lightning", "ray", "sglang", "torchmetrics",
    "transformers", "vllm",
)  # fmt: skip


def examples() -> list[tuple[str, str, str]]:
    """Return page, name and code of each whole script: it begins with its name."""
    return [
        (page.name, re.findall(r"# (\w+)\.py", code)[0], code)
        for page in PAGES
        for code in re.findall(r"```python\n(# \w+\.py.*?)```", page.read_text(), re.DOTALL)
    ]


TOGETHER = [example for example in examples() if "started by: " in example[2].splitlines()[0]]
ALONE = [example for example in examples() if example not in TOGETHER]


def skip_without(code: str) -> None:
    for name in OTHERS:
        used = re.search(rf"^(from|import) {name}\b", code, re.MULTILINE) is not None
        used |= name == "cloudpickle" and "fastcomm.launch(" in code
        if used and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def test_there_are_examples() -> None:
    assert len(TOGETHER) >= 4 and len(ALONE) >= 2


@pytest.mark.parametrize(("page", "name", "code"), TOGETHER, ids=[name for _, name, _ in TOGETHER])
def test_an_example_runs_on_ranks(page: str, name: str, code: str, tmp_path: Path) -> None:
    skip_without(code)
    (tmp_path / f"{name}.py").write_text(code)
    ((program, words),) = re.findall(r"started by: (torchrun|fastcomm) (.*)", code.splitlines()[0])
    ranks = int((re.findall(r"--nproc\S* (\d)", words) or ["2"])[0])
    if name in AS_USERS_DO:
        output = _started(program, words, tmp_path)
    else:
        of_script = words[words.index(f"{name}.py") :].split()
        ended = scripts.run(tmp_path, *of_script, ranks=ranks, taken_over="fastcomm run" in words)
        assert [each.status for each in ended] == [0] * ranks, ended
        output = "".join(each.said for each in ended)
    # What two ranks print at once may share a line, also with the Trainer's {'eval_loss': ...}.
    said = dict(re.findall(r"rank (\d): (.+?)(?=rank \d: |\{|\n|$)", output))
    assert sorted(said) == [str(rank) for rank in range(ranks)], output
    if name == "mismatch":
        assert all("all_reduce, sequence 0" in text and "1000" in text for text in said.values())
    else:
        assert len(set(said.values())) == 1, output
    if "get_backend()" in code:
        assert all(text.startswith("fastcomm, ") for text in said.values()), output


@pytest.mark.parametrize("name", ["rms_norm", "packaged", "accelerated", "fabric", "lit"])
def test_a_script_of_examples_runs_on_ranks(name: str, tmp_path: Path) -> None:
    script = ROOT / "docs" / "examples" / f"{name}.py"
    skip_without(script.read_text())
    ended = scripts.run(tmp_path, str(script), ranks=2)
    assert [each.status for each in ended] == [0, 0], ended
    said = re.findall(r"rank \d: (.+?)(?=rank \d: |\n|$)", "".join(each.said for each in ended))
    assert len(said) == 2 and said[0] == said[1], said
    if "get_backend()" in script.read_text():
        assert said[0].startswith("fastcomm, "), said


def _started(program: str, words: str, folder: Path) -> str:
    """Return what a command prints that users type."""
    module = {"torchrun": "torch.distributed.run"}.get(program, program)
    result = subprocess.run(
        [sys.executable, "-m", module, *words.split()],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=ENDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(("page", "name", "code"), ALONE, ids=[name for _, name, _ in ALONE])
def test_an_example_runs_alone(page: str, name: str, code: str, tmp_path: Path) -> None:
    skip_without(code)
    elsewhere = "fastcomm.launch(" in code or "ray.init(" in code  # is its model
    if "backward()" in code and not elsewhere:
        code += "assert all(parameter.grad is not None for parameter in model.parameters())\n"
    (tmp_path / f"{name}.py").write_text(code)
    if name not in AS_USERS_DO:
        (ended,) = scripts.run(tmp_path, f"{name}.py")
        assert ended.status == 0, ended
        return
    command = [sys.executable, f"{name}.py"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=ENDS, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_front_page_is_short() -> None:
    assert len(PAGES[0].read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        target, _, part = link.partition("#")
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name}: {link}"
        if part:
            heads = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
            assert part in anchors, f"{page.name}: {link}"
