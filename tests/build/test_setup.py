"""setup.py refuses with the lines to type; a wheel works away from the sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = None
sys.argv = ["setup.py", "--version"]
runpy.run_path("setup.py")
"""

WITH_OLD_TORCH = """
import runpy, sys, types
sys.modules["torch"] = types.SimpleNamespace(__version__="2.10.1+cpu")
sys.argv = ["setup.py", "--version"]
runpy.run_path("setup.py")
"""


def run(command: list[str], root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=root,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_make_builds_again_for_what_setup_py_imports_alone(root: Path) -> None:
    """Another tool that changes makes nothing anew."""
    tools = {path.stem: path for path in (root / "tools").glob("*.py")}
    found: set[str] = set()
    ahead = [root / "setup.py"]
    while ahead:
        imported = re.findall(r"^(?:import|from) (\w+)", ahead.pop().read_text(), re.MULTILINE)
        new = {name for name in imported if name in tools} - found
        found |= new
        ahead += [tools[name] for name in new]
    (line,) = re.findall(r"^BUILD_TOOLS := .*?,(.*)\)$", (root / "Makefile").read_text(), re.M)
    assert {f"{name}.py" for name in found} == set(line.split())


def test_an_old_torch_is_refused_in_one_line(root: Path) -> None:
    done = run([sys.executable, "-c", WITH_OLD_TORCH], root)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "has 2.10.1+cpu" in line and 'pip install "torch>=2.11"' in line


def test_without_torch_one_line_says_what_to_type(root: Path) -> None:
    done = run([sys.executable, "-c", WITHOUT_TORCH], root)
    assert done.returncode == 1
    assert 'pip install "torch>=2.11"' in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "wish", "message"),
    [
        ("FASTCOMM_CUDA", "yes", "FASTCOMM_CUDA must be 0 or 1, not 'yes'"),
        ("FASTCOMM_CUDA", "1", "FASTCOMM_CUDA=1 needs "),
        ("FASTCOMM_DEBUG", "yes", "FASTCOMM_DEBUG must be 0 or 1, not 'yes'"),
        ("FASTCOMM_UNITS", "no", "FASTCOMM_UNITS must be 0 or 1, not 'no'"),
    ],
)
def test_impossible_flavour(root: Path, tmp_path: Path, name: Any, wish: Any, message: Any) -> None:
    environment = {name: wish, "PATH": str(tmp_path), "CUDA_HOME": "", "CUDA_PATH": ""}
    if wish == "1" and torch.version.cuda and Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("this environment has both nvcc and a CUDA build of torch")
    done = run([sys.executable, "setup.py", "--version"], root, **environment)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"fastcomm: {message}")


def test_torch_chooses_the_language_standard(root: Path) -> None:
    assert "-std" not in (root / "setup.py").read_text()


def test_torch_is_no_build_requirement(root: Path) -> None:
    text = (root / "pyproject.toml").read_text()
    requirements = text.split("[build-system]")[1].split("]")[0]
    assert "setuptools" in requirements and "torch" not in requirements


def test_the_source_distribution_has_its_licence_and_what_its_pages_link_to(
    root: Path, tmp_path: Path
) -> None:
    # What sdist packs is what egg_info lists, without packing it.
    words = ["setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    done = run([sys.executable, *words], root, FASTCOMM_CUDA="0")
    assert done.returncode == 0, done.stderr
    described = (tmp_path / "fastcomm.egg-info" / "PKG-INFO").read_text()
    head = described.partition("\n\n")[0].splitlines()
    assert {"License: BSD-3-Clause", "License-File: LICENSE"} <= set(head)
    listed = (tmp_path / "fastcomm.egg-info" / "SOURCES.txt").read_text().splitlines()
    packed = {os.path.normpath(root / path) for path in listed}
    folders = {str(parent) for path in packed for parent in Path(path).parents}
    pages = [Path(path) for path in sorted(packed) if path.endswith(".md")]
    assert {root / "README.md", root / "LICENSE", root / "CONTRIBUTING.md"} <= set(
        map(Path, packed)
    )
    missing = []
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if "://" not in link:
                target = os.path.normpath(page.parent / link)
                missing += [] if target in packed | folders else [f"{page.name}: {link}"]
    assert not missing


@pytest.mark.slow
def test_wheel_works_away_from_the_sources(root: Path, tmp_path: Path, run_python: Any) -> None:
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
    flavour = "1" if "cuda" in _built_flavour() else "0"
    done = run([*command, "--no-deps", "--target", str(target), "."], root, FASTCOMM_CUDA=flavour)
    assert done.returncode == 0, done.stdout + done.stderr
    present = {path.name for path in (target / "fastcomm").iterdir()}
    assert {"py.typed", "_build_info.py"} <= present
    assert len(list(next(target.glob("fastcomm-*.dist-info")).rglob("LICENSE"))) == 1
    code = (
        "import fastcomm; from fastcomm import _native; print(_native.load().__file__);"
        "from importlib.metadata import version; print(version('fastcomm') == fastcomm.__version__)"
    )
    done = run_python(code, path=target)
    assert done.returncode == 0, done.stdout + done.stderr
    library, agrees = done.stdout.split()
    assert Path(library).parent == target / "fastcomm" and agrees == "True", done.stderr


def _built_flavour() -> str:
    from fastcomm import _build_info

    return str(_build_info.FLAVOUR)
