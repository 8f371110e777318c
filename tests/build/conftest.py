"""Helpers to look at the package from fresh interpreters and in broken copies."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.patience import ENDS
from support.ranks import World, run_ranks

ROOT = Path(__file__).resolve().parents[2]

# An editable install has a finder that answers for every submodule of fastcomm, even for those that
# a broken copy lacks on purpose.
WITHOUT_EDITABLE_FINDER = (
    "import sys; sys.meta_path[:] ="
    " [one for one in sys.meta_path if 'editable' not in getattr(one, '__module__', '')]"
)

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Told = Callable[[str, Path], str]


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's folder."""
    return ROOT


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """Run code in a fresh interpreter, in an empty folder; ``path`` is searched first."""

    def run(
        code: str, *options: str, path: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONWARNINGS", "TORCH_DEVICE_BACKEND_AUTOLOAD")
        }
        if path is not None:
            code = f"{WITHOUT_EDITABLE_FINDER}\n{code}"
            environment["PYTHONPATH"] = str(path)
        folder = tmp_path / "empty"
        folder.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, *options, "-c", code],
            env=inherited | environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=ENDS,
        )

    return run


def _told(_: World, code: str, path: str) -> str:
    for name in [name for name in sys.modules if name.partition(".")[0] == "fastcomm"]:
        del sys.modules[name]
    # A test before this one may have loaded a benchmark, which puts the sources on the path.
    sys.path[:] = [path, *(one for one in sys.path if Path(one).resolve() != ROOT)]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(f"{WITHOUT_EDITABLE_FINDER}\n{code}", {})
    return said.getvalue()


@pytest.fixture
def told() -> Told:
    """Run code where torch is loaded and fastcomm is not, as `run_python`; return what it prints.

    Faster than a fresh interpreter, which spends its time with torch.
    """

    def run(code: str, path: Path) -> str:
        said: str = run_ranks(1, _told, code, str(path))[0]
        return said

    return run


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package without native library and build record."""
    folder = tmp_path / "copy"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "_build_info.py")
    shutil.copytree(ROOT / "fastcomm", folder / "fastcomm", ignore=ignored)
    return folder
