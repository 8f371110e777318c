"""The backend's name is known after ``import torch`` alone, and never at torch's expense."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from fastcomm import _register

BROKEN = "def register() -> None:\n    raise RuntimeError('broken on purpose')\n"
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
KNOWN = "print(torch.distributed.is_backend_available('fastcomm'))"

# From 2.14 on torch looks for a backend's own entry point when its name is used.
FINDS_BACKENDS = hasattr(dist.Backend, "_ensure_backend_registered")

installed = pytest.mark.skipif(
    not entry_points(group="torch.backends", name="fastcomm"),
    reason="fastcomm is not installed in this environment, so torch cannot find its entry point",
)


@installed
@pytest.mark.parametrize(
    ("autoload", "known"), [({}, "True"), ({AUTOLOAD: "0"}, str(FINDS_BACKENDS))]
)
def test_import_torch_alone_is_enough_and_needs_autoload_before_torch_2_14(
    run_python: Any, autoload: Any, known: Any
) -> None:
    done = run_python(f"import torch, torch.distributed; {KNOWN}", "-W", "error", **autoload)
    assert done.stdout.split() == [known], done.stderr


@pytest.mark.parametrize("order", ["torch, fastcomm", "fastcomm, torch"])
def test_both_import_orders_without_autoload(run_python: Any, root: Path, order: str) -> None:
    done = run_python(f"import {order}; {KNOWN}", "-W", "error", path=root, **{AUTOLOAD: "0"})
    assert done.stdout.split() == ["True"], done.stderr


@pytest.mark.parametrize("order", ["torch, fastcomm", "fastcomm, torch"])
def test_nothing_heavy_is_loaded_and_defaults_of_devices_stay(
    run_python: Any, root: Path, order: str
) -> None:
    code = (
        f"import {order}, sys; known = torch.distributed.Backend;"
        "print(sorted(name for name in sys.modules if name.startswith('fastcomm')));"
        "print(known.default_device_backend_map['cpu'], known.default_device_backend_map['cuda'],"
        "      known.backend_capability['fastcomm'], known.backend_list.count('fastcomm'));"
        f"{KNOWN}"
    )
    done = run_python(code, "-W", "error", path=root, **{AUTOLOAD: "1"})
    assert done.stdout.splitlines() == [
        "['fastcomm', 'fastcomm._register', 'fastcomm._version']",
        "gloo nccl ['cpu', 'cuda'] 1",
        "True",
    ], done.stderr


@installed
@pytest.mark.parametrize(
    "record",
    [
        None,
        pytest.param("TORCH_VERSION = '0.0'", marks=pytest.mark.release),
        "this is no Python",
    ],
)
def test_a_broken_build_does_not_break_torch(
    run_python: Any, package_copy: Path, record: Any
) -> None:
    if record is not None:
        (package_copy / "fastcomm" / "_build_info.py").write_text(record)
    code = (
        f"import torch, fastcomm; print(fastcomm.__file__); {KNOWN}; print(fastcomm.is_available())"
    )
    done = run_python(code, "-W", "error", path=package_copy)
    assert done.stdout.split() == [f"{package_copy}/fastcomm/__init__.py", "True", "False"], (
        done.stderr
    )


@installed
@pytest.mark.parametrize("options", [[], ["-W", "error"]])
def test_a_failing_registration_is_only_a_warning(
    run_python: Any, package_copy: Path, options: Any
) -> None:
    register = package_copy / "fastcomm" / "_register.py"
    register.write_text(register.read_text().replace("def register() -> None:", BROKEN))
    done = run_python("import torch; print(torch.ones(1).item())", *options, path=package_copy)
    assert done.stdout.split() == ["1.0"], done.stderr
    assert "fastcomm could not register" in done.stderr
    assert "broken on purpose" in done.stderr


def test_import_without_torch(run_python: Any, root: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; import fastcomm; print(fastcomm.__version__)"
    done = run_python(code, "-W", "error", path=root)
    assert done.returncode == 0, done.stderr


def test_torch_without_distributed(run_python: Any, root: Path) -> None:
    code = (
        "import torch.distributed as dist; dist.is_available = lambda: False;"
        "import fastcomm; print('fastcomm' in dist.Backend.backend_list)"
    )
    done = run_python(code, "-W", "error", path=root, **{AUTOLOAD: "0"})
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.parametrize(
    ("argv", "before", "is_one"),
    [
        (["/bin/fastcomm", "top", "--once"], [], True),
        (["-m", "top"], ["-m", "fastcomm"], True),
        (["-m", "top"], ["-m", "other"], False),
        (["/bin/fastcomm", "check"], [], False),
        (["/bin/fastcomm"], [], False),
        (["train.py", "top"], [], False),
        ([], [], False),
    ],
)
def test_commands_that_need_no_torch(
    argv: list[str], before: list[str], is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", ["python", *before, *argv[1:]])
    assert _register._only_reads() == is_one


def test_public_names() -> None:
    import fastcomm

    assert set(fastcomm.__all__) <= set(dir(fastcomm))
    for name in fastcomm.__all__:
        assert getattr(fastcomm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = fastcomm.absent  # type: ignore[attr-defined]
