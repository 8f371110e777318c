"""Loading the native library, and the errors that say how to repair an installation."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

RECORD = {
    "TORCH_VERSION": str(torch.__version__),
    "CUDA_VERSION": torch.version.cuda,
    "PYTHON_TAG": sys.implementation.cache_tag,
}
LOAD = (
    "from fastcomm import _native\ntry: _native.load()\nexcept ImportError as error: print(error)"
)


def write_record(package: Path, **changes: str | None) -> None:
    lines = [f"{name} = {value!r}" for name, value in (RECORD | changes).items()]
    (package / "fastcomm" / "_build_info.py").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("changes", "built", "found"),
    [
        ({"TORCH_VERSION": "2.10.0"}, "torch 2.10.0", f"torch {torch.__version__}"),
        ({"CUDA_VERSION": "9.2"}, "CUDA 9.2", f"CUDA {torch.version.cuda or '(none)'}"),
        ({"PYTHON_TAG": "cpython-27"}, "Python cpython-27", f"Python {RECORD['PYTHON_TAG']}"),
    ],
)
def test_mismatch_is_reported_before_the_library_is_opened(
    told: Any, package_copy: Path, changes: Any, built: Any, found: Any
) -> None:
    write_record(package_copy, **changes)
    # Not an ELF file: opening it would be reported in different words.
    (package_copy / "fastcomm" / "_C.so").write_text("no library")
    first, *rest = told(LOAD, package_copy).splitlines()
    assert first == f"fastcomm was built for {built}, but this process has {found}."
    assert "pip install --no-build-isolation" in "\n".join(rest)


# A record other than "good" and "without CUDA" is the text of the file.
@pytest.mark.parametrize(
    ("record", "library", "message"),
    [
        (None, None, "fastcomm has not been built here."),
        ("good", None, "fastcomm's native library is missing."),
        ("without CUDA", None, "fastcomm's native library is missing."),  # fits every CUDA
        ("good", "no library", "fastcomm's native library does not load: "),
        ("1 +", None, "fastcomm's record of its build cannot be read (SyntaxError"),
        ("X = 1", None, "fastcomm's record of its build cannot be read (AttributeError"),
    ],
)
def test_what_is_missing_or_broken(
    told: Any, package_copy: Path, record: Any, library: Any, message: Any
) -> None:
    if record in ("good", "without CUDA"):
        write_record(package_copy, **({"CUDA_VERSION": None} if record != "good" else {}))
    elif record is not None:
        (package_copy / "fastcomm" / "_build_info.py").write_text(record)
    if library is not None:
        (package_copy / "fastcomm" / "_C.so").write_text(library)
    said = told(LOAD, package_copy)
    assert said.startswith(message), said
    assert "pip install --no-build-isolation" in said


def test_sources_in_front_of_what_is_installed_are_told(
    run_python: Any, package_copy: Path, tmp_path: Path
) -> None:
    installed = tmp_path / "site-packages"
    (installed / "fastcomm").mkdir(parents=True)
    (installed / "fastcomm" / "_build_info.py").write_text("")
    (installed / "fastcomm-0.1.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: fastcomm\nVersion: 0.1.0\n"
    (installed / "fastcomm-0.1.0.dist-info" / "METADATA").write_text(metadata)
    code = f"import sys\nsys.path.append({str(installed)!r})\n{LOAD}"
    done = run_python(code, path=package_copy)
    first, advice = done.stdout.splitlines()
    assert str(package_copy / "fastcomm") in first and str(installed / "fastcomm") in first
    assert "outside of fastcomm's source folder" in advice and "pip" not in done.stdout


def test_library_names_the_devices_that_it_serves() -> None:
    from fastcomm import _build_info, _native
    from fastcomm._devices import slots as _slots

    assert _native.load().accelerator_type() == {"cpu": "", "cuda": "cuda"}[_build_info.FLAVOUR]
    assert _slots.served() == "cuda"  # also where torch does the work


def test_without_torch_the_error_says_so(run_python: Any, package_copy: Path) -> None:
    done = run_python(f"import sys\nsys.modules['torch'] = None\n{LOAD}", path=package_copy)
    assert done.stdout.startswith("fastcomm needs torch"), done.stdout + done.stderr


def test_library_links_neither_the_driver_nor_nccl_nor_a_second_openmp(root: Path) -> None:
    libraries = sorted((root / "fastcomm").glob("_C*.so"))
    assert libraries, "the library has not been built in place"
    for library in libraries:
        command = ["readelf", "-d", str(library)]
        dynamic = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
        assert needed
        unwanted = ("libcuda.so", "nccl", "omp")
        assert not [line for line in needed if any(name in line for name in unwanted)]
        run_paths = {
            path
            for paths in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic)
            for path in paths.split(":")
        }
        assert run_paths <= _run_paths_of_python(), dynamic


def _run_paths_of_python() -> set[str]:
    """Return the run paths that this Python's build adds to every extension."""
    flags = f"{sysconfig.get_config_var('LDSHARED')} {sysconfig.get_config_var('LDFLAGS')}"
    return {path for paths in re.findall(r"-rpath[=,](\S+)", flags) for path in paths.split(":")}
