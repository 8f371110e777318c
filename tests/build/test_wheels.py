"""tools/wheels.py and fastcomm/_build.py: one wheel for every torch, and which build serves."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_releases
import wheels

import fastcomm

MINOR = wheels.minor_of(torch.__version__)
FOLDER = wheels.folder_of(torch.__version__)
RECORD = (
    f"TORCH_VERSION, CUDA_VERSION, PYTHON_TAG = {MINOR!r}, None, {sys.implementation.cache_tag!r}"
)
LOAD = (
    "from fastcomm import _native\ntry: _native.load()\nexcept ImportError as error: print(error)"
)


def builds(package: Path, *names: str) -> None:
    for name in names:
        folder = package / "fastcomm" / "_builds" / name
        folder.mkdir(parents=True)
        (folder / "_build_info.py").write_text(RECORD)
        (folder / "_C.so").write_text("no library")


def test_the_build_for_the_running_torch_is_chosen(run_python: Any, package_copy: Path) -> None:
    builds(package_copy, "torch2_9", FOLDER)
    said = run_python(LOAD, path=package_copy).stdout
    assert said.startswith("fastcomm's native library does not load: "), said
    assert f"{FOLDER}/_C.so" in said


def test_a_torch_that_no_build_serves_is_told(run_python: Any, package_copy: Path) -> None:
    builds(package_copy, "torch2_10", "torch2_9")
    first, *rest = run_python(LOAD, path=package_copy).stdout.splitlines()
    assert "serves torch 2.9, 2.10, but this process has torch " + torch.__version__ in first
    assert "pip install" in "\n".join(rest)


def test_what_an_older_wheel_has_left_is_not_chosen(run_python: Any, package_copy: Path) -> None:
    builds(package_copy, FOLDER)
    (package_copy / "fastcomm" / "_build_info.py").write_text(RECORD.replace(MINOR, "2.1"))
    said = run_python(LOAD, path=package_copy).stdout
    assert said.startswith(f"fastcomm was built for torch 2.1, but this process has torch {MINOR}")


def test_each_supported_torch_is_in_a_wheel_once() -> None:
    minors = [wheels.minor_of(version) for version in wheels.releases()]
    newest = torch_releases.newest_known()
    assert minors[0] == "2.11" and wheels.releases()[-1] == newest
    assert minors == [f"2.{minor}" for minor in range(11, int(minors[-1].split(".")[1]) + 1)]


def test_a_build_in_the_sources_stays_out_of_the_wheel(
    root: Path, package_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, package_copy)
    for name in ("_build_info.py", "_C.some.so"):
        (package_copy / "fastcomm" / name).touch()
    monkeypatch.chdir(package_copy)
    monkeypatch.setattr(wheels, "PLACE", tmp_path / "place")
    native = tmp_path / wheels.NATIVE
    native.touch()
    wheel = wheels.plain_wheel([], native, fastcomm.__version__)
    names = zipfile.ZipFile(wheel).namelist()
    assert f"fastcomm/_builds/{wheels.NATIVE}" in names and "fastcomm/_build.py" in names
    assert not {"fastcomm/_build_info.py", "fastcomm/_C.some.so"} & set(names)


@pytest.mark.release
def test_a_wheel_for_the_installed_torch(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built, installed away from the sources, and used by ranks."""
    monkeypatch.setattr(wheels, "torch_headers", lambda _: Path(torch.__file__).parent)
    monkeypatch.setattr(sys, "argv", ["wheels.py", "--torch", MINOR])
    monkeypatch.setattr(wheels, "DIST", tmp_path / "dist")
    monkeypatch.chdir(root)
    wheels.main()
    (wheel,) = (tmp_path / "dist").glob("*manylinux*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert f"fastcomm/_builds/{wheels.NATIVE}" in names
    assert len([name for name in names if "/_C." in name]) == 1
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(site), str(wheel)], check=True)
    environment = {"PYTHONPATH": f"{site}:{root / 'tests'}"}
    code = (
        "import torch, torch.distributed as dist; from fastcomm import _native;"
        "dist.init_process_group('fastcomm', rank=0, world_size=1, store=dist.HashStore());"
        "x = torch.ones(9); dist.all_reduce(x); print(_native.load().__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(done.stdout.strip()).parent == site / "fastcomm" / "_builds" / FOLDER
