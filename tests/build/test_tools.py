"""Sources and flags of the torch-free layers; the CUDA toolkit's place and architectures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import copy_tree
import cuda_toolkit
import native_build
import pytest
from support.patience import ENDS


@pytest.fixture
def small_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Build a small tree of sources, each of which checks its own macros."""
    texts = {
        "core/plain.cpp": "#ifdef __AVX2__\n#error leak\n#endif\nint plain() { return 1; }\n",
        "kernels/sum_avx2.cpp": "#ifndef __AVX2__\n#error no\n#endif\nint a2() { return 2; }\n",
        "kernels/sum_avx512.cpp": "#ifndef __AVX512BW__\n#error no\n#endif\nint a5();\n",
        "c10d/backend.cpp": "#error not below torch\n",
    }
    for name, text in texts.items():
        path = tmp_path / "csrc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(native_build, "ROOT", tmp_path)
    monkeypatch.setattr(native_build, "CSRC", tmp_path / "csrc")


@pytest.mark.parametrize(
    ("machine", "names", "macros"),
    [
        (
            "x86_64",
            ["plain.cpp", "sum_avx2.cpp", "sum_avx512.cpp"],
            ["FC_HAVE_AVX2", "FC_HAVE_AVX512"],
        ),
        ("aarch64", ["plain.cpp"], []),
    ],
)
def test_variants_belong_to_their_architecture(
    small_tree: Any, monkeypatch: pytest.MonkeyPatch, machine: Any, names: Any, macros: Any
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    sources = native_build.native_sources()
    assert [path.name for path in sources] == names
    assert native_build.variant_macros(sources) == macros


def test_library_is_built_once(
    small_tree: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build_dir = tmp_path / "build"
    library = native_build.build(build_dir, ["-fPIC"])
    first = library.stat().st_mtime_ns
    assert len(native_build.compile_commands(build_dir)) == len(native_build.native_sources())
    assert native_build.build(build_dir, ["-fPIC"]).stat().st_mtime_ns == first
    assert "no work to do" in capfd.readouterr().out


def test_units_include_their_sources_and_are_written_once(small_tree: Any, tmp_path: Path) -> None:
    source = tmp_path / "csrc" / "c10d" / "backend.cpp"
    (unit,) = native_build.write_units(tmp_path / "units", {"c10d": [source]})
    assert unit.read_text() == '#include "c10d/backend.cpp"\n'
    first = unit.stat().st_mtime_ns
    native_build.write_units(tmp_path / "units", {"c10d": [source]})
    assert unit.stat().st_mtime_ns == first
    entry = {"directory": str(tmp_path), "file": "units/c10d.cpp", "command": "c++ units/c10d.cpp"}
    assert native_build.sources_of_entry(entry) == [str(source)]


def test_compile_error_stops_the_build(small_tree: Any, tmp_path: Path) -> None:
    (tmp_path / "csrc" / "core" / "plain.cpp").write_text("#error on purpose\n")
    with pytest.raises(SystemExit, match="do not compile"):
        native_build.build(tmp_path / "build", [])


@pytest.mark.parametrize(
    ("default", "flags"), [("201402L", ["-std=gnu++17"]), ("201703L", []), ("202002L", [])]
)
def test_old_compilers_are_asked_for_cpp17(
    monkeypatch: pytest.MonkeyPatch, default: Any, flags: Any
) -> None:
    answer = SimpleNamespace(stdout=f"#define X 1\n#define __cplusplus {default}\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: answer)
    assert native_build.standard_flags(["g++"]) == flags


@pytest.fixture
def fake_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a toolkit whose nvcc is reached through a wrapper script in another folder."""
    nvcc = tmp_path / "toolkit" / "bin" / "nvcc"
    wrapper = tmp_path / "bin" / "nvcc"
    listed = "compute_75 compute_80 compute_90 compute_100"
    texts = {
        nvcc: f'case "$1" in --list-gpu-arch) printf "%s\\n" {listed};;\n'
        f"*) echo '#$ _HERE_={nvcc.parent}' >&2;; esac\n",
        wrapper: f'exec {nvcc} "$@"\n',
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
    for name in ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    return nvcc.parent.parent


def fake_torch(*capabilities: tuple[int, int]) -> Any:
    cuda = SimpleNamespace(
        is_available=lambda: bool(capabilities),
        device_count=lambda: len(capabilities),
        get_device_capability=lambda index: capabilities[index],
    )
    return SimpleNamespace(cuda=cuda)


def test_the_toolkit_behind_a_wrapper_and_its_architectures(
    fake_toolkit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, home = cuda_toolkit.choose_architectures, cuda_toolkit.find_cuda_home()
    assert home == str(fake_toolkit)
    # This nvcc does not know 12.0 yet.
    assert choose(fake_torch(), home)[0] == "8.0;9.0;10.0+PTX"
    visible = fake_torch((9, 0), (8, 0), (9, 0))
    assert choose(visible, home) == ("8.0;9.0", "the visible GPUs")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")
    assert choose(visible, home) == ("7.5", "TORCH_CUDA_ARCH_LIST")


def test_architectures_as_options() -> None:
    options = cuda_toolkit.gencode_options
    assert options("8.0;9.0a+PTX") == (
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_90a,code=compute_90a",
    )
    assert options("12.0 8.6") == options("12.0;8.6")
    with pytest.raises(SystemExit, match="'Hopper' is no compute capability"):
        options("8.0;Hopper")


def test_machine_code_is_compressed_where_every_driver_unpacks_it(tmp_path: Path) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    for release, options in (("12.9", ()), ("13.0", ("-compress-mode=size",)), ("?", ())):
        nvcc.write_text(
            f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n"
        )
        nvcc.chmod(0o755)
        assert cuda_toolkit.compression_options(str(tmp_path)) == options


def test_command_line(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(root / "tools" / "native_build.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS)
    assert done.returncode == 0 and "--cxxflags" in done.stdout


def test_loops_are_compiled_once_for_both_flavours(
    small_tree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ninja takes what was copied for its own, in another folder and with CUDA."""
    monkeypatch.setattr(copy_tree, "ROOT", tmp_path)
    monkeypatch.setattr(cuda_toolkit, "compression_options", lambda home: [])
    (tmp_path / "csrc" / "kernels" / "sum_generic.cpp").write_text("int a0() { return 0; }\n")
    built = native_build.build_library(None).parent
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "csrc", copy / "csrc", copy_function=shutil.copy2)
    copy_tree.copy_loops(copy)
    monkeypatch.setattr(native_build, "ROOT", copy)
    monkeypatch.setattr(native_build, "CSRC", copy / "csrc")
    place = native_build.library_dir(native_build.Cuda("/no/cuda", ()))
    loops = list((place / "units").glob("*.cpp.o"))
    kept = [path.stat().st_mtime_ns for path in loops]
    assert loops and kept == [(built / "units" / path.name).stat().st_mtime_ns for path in loops]
    native_build.build_library(native_build.Cuda("/no/cuda", ()))
    assert (place / native_build.LIBRARY_NAME).exists()
    assert [path.stat().st_mtime_ns for path in loops] == kept
