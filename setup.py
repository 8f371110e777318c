"""Build fastcomm's native library; all metadata is in pyproject.toml.

    pip install .

compiles against the torch that is already installed, since a C++ extension of torch works with
no other. (Build isolation hides it from Python, but not where it lies; --no-build-isolation works
as well.) Two steps: the layers below torch become a static library (tools/native_build.py), CUDA
kernels included, then torch's extension builder compiles the rest (c10d, ops, bindings) and links
both. Torch's headers take most of that, so the rest is compiled as a few large units.

Environment:
    FASTCOMM_CUDA          1 or 0: with or without CUDA. Default: with it where both nvcc and a
                           CUDA build of torch are present.
    FASTCOMM_DEBUG         1: -O0 -g instead of -O3.
    FASTCOMM_UNITS         0: the sources above the layers are compiled one by one, so that a change
                           of one takes seconds. Default: 1, which is fastest for all of them.
    MAX_JOBS               number of compilers that run at once.
    TORCH_CUDA_ARCH_LIST   GPU architectures, in torch's notation.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import build_host  # noqa: E402
import build_record  # noqa: E402
import cuda_toolkit  # noqa: E402
import native_build  # noqa: E402
import torch_releases  # noqa: E402

# pip's build isolation hides what this environment has; what it offers instead stays in front.
sys.path += {sysconfig.get_path(kind) for kind in ("purelib", "platlib")} - set(sys.path)
try:
    import torch
except ImportError as error:
    raise SystemExit(
        f"fastcomm is compiled against the PyTorch you use, and {sys.prefix} has none ({error}). "
        'Type: pip install "torch>=2.11" (and then, outside of an environment that only builds, '
        "pip install --no-build-isolation .), or install a wheel, which needs no compiler"
    ) from None

if torch_releases.release(torch.__version__) < (2, 11):
    raise SystemExit(
        f"fastcomm needs torch 2.11 or later, and {sys.prefix} has {torch.__version__}. "
        'Type: pip install "torch>=2.11"'
    )

NEWEST_KNOWN_TORCH = torch_releases.newest_known()
if torch_releases.is_newer(torch.__version__, NEWEST_KNOWN_TORCH):
    print(
        f"fastcomm: torch {torch.__version__} is newer than any that fastcomm has been tested with "
        f"(up to {NEWEST_KNOWN_TORCH}); trying"
    )

# torch looks for ninja on PATH only, and an environment that is not activated is not on it.
os.environ["PATH"] = os.pathsep.join(
    [str(Path(native_build.find_ninja()).parent), os.environ.get("PATH", "")]
)


def switch(name: str) -> str:
    """Return a variable that is 0, 1 or empty."""
    wish = os.environ.get(name, "")
    if wish not in ("", "0", "1"):
        raise SystemExit(f"fastcomm: {name} must be 0 or 1, not {wish!r}")
    return wish


IS_DEBUG = switch("FASTCOMM_DEBUG") == "1"
HAS_UNITS = switch("FASTCOMM_UNITS") != "0"


def choose_cuda_home() -> str | None:
    """Return the toolkit to compile CUDA sources with, None for the CPU-only flavour."""
    wish = switch("FASTCOMM_CUDA")
    home = None if wish == "0" else cuda_toolkit.find_cuda_home()
    missing = [
        what
        for what, there in (("nvcc", home), ("a CUDA build of torch", torch.version.cuda))
        if not there
    ]
    if wish == "1" and missing:
        raise SystemExit(f"fastcomm: FASTCOMM_CUDA=1 needs {' and '.join(missing)}")
    return None if missing else home


CUDA_HOME = choose_cuda_home()
ARCHITECTURES = ""
if CUDA_HOME:
    ARCHITECTURES, REASON = cuda_toolkit.choose_architectures(torch, CUDA_HOME)
    os.environ["CUDA_HOME"] = CUDA_HOME
    os.environ["TORCH_CUDA_ARCH_LIST"] = ARCHITECTURES
    print(f"fastcomm: CUDA flavour, {CUDA_HOME}, architectures {ARCHITECTURES} ({REASON})")
else:
    print("fastcomm: CPU-only flavour")

# Reads CUDA_HOME once, when it is imported.
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension  # noqa: E402

FLAVOUR = "cuda" if CUDA_HOME else "cpu"
# Objects for different torches, Pythons and flavours never mix.
BUILD_DIR = ROOT / "build" / f"{FLAVOUR}-torch{torch.__version__}-{sys.implementation.cache_tag}"
CUDA = None
if CUDA_HOME:
    CUDA = native_build.Cuda(CUDA_HOME, cuda_toolkit.gencode_options(ARCHITECTURES))
# What is above the layers hands over tensors and computes nothing: -O2 is enough.
CODE_FLAGS = [*native_build.CODE_FLAGS, "-O2"]
if IS_DEBUG:
    CODE_FLAGS += ["-O0", "-g"]


def extension() -> CppExtension:
    """Describe ``fastcomm._C``: sources above the torch-free layers, flags, macros."""
    if HAS_UNITS:
        sources = native_build.write_units(BUILD_DIR / "units", native_build.torch_units())
    else:
        sources = sorted(path for unit in native_build.torch_units().values() for path in unit)
    macros = [(name, "1") for name in native_build.variant_macros(native_build.native_sources())]
    # at::parallel_for is a plain loop without -fopenmp. Nothing is linked for it: the runtime must
    # be the one that torch has brought along; a second one would have threads of its own.
    flags = {"cxx": [*CODE_FLAGS, "-Wall", "-fopenmp"]}
    kind = CppExtension
    if CUDA_HOME:
        kind = CUDAExtension  # for the headers and the libraries that it names
        macros.append(("FC_WITH_CUDA", "1"))
    return kind(
        "fastcomm._C",
        [str(path.relative_to(ROOT)) for path in sources],
        include_dirs=[str(ROOT / "csrc")],
        define_macros=macros,
        extra_compile_args=flags,
        extra_objects=[str(native_build.library_dir(CUDA) / native_build.LIBRARY_NAME)],
    )


class BuildNative(BuildExtension):
    """Build the static library, the extension, then the record of what they were built for."""

    def finalize_options(self) -> None:
        """Keep objects in a lasting folder; an editable install would use a temporary one."""
        super().finalize_options()
        self.build_temp = str(BUILD_DIR)

    def run(self) -> None:
        """Build, and in place leave the record beside the sources too."""
        build_host.check_compiler()
        build_host.limit_jobs()
        super().run()
        if self.inplace:
            shutil.copyfile(self._build_info_path(), ROOT / "fastcomm" / "_build_info.py")

    def build_extensions(self) -> None:
        """Compile everything that has changed."""
        try:
            native_build.build_library(CUDA)
            super().build_extensions()
        except (SystemExit, Exception) as error:
            raise SystemExit(build_host.failure(error)) from None
        self._build_info_path().write_text(build_info(self.distribution.get_version()))
        commands = native_build.compile_commands(native_build.library_dir(CUDA), BUILD_DIR)
        (ROOT / "compile_commands.json").write_text(json.dumps(commands, indent=1) + "\n")

    def _build_info_path(self) -> Path:
        package = Path(self.build_lib, "fastcomm")
        package.mkdir(parents=True, exist_ok=True)
        return package / "_build_info.py"


def build_info(version: str) -> str:
    """Return the text of ``fastcomm/_build_info.py``."""
    return build_record.text(
        version=version,
        torch=str(torch.__version__),
        cuda=torch.version.cuda if CUDA_HOME else None,
        architectures=ARCHITECTURES,
    )


# Here: in pyproject.toml older setuptools refuse an expression, and newer ones anything else.
setup(license="BSD-3-Clause", ext_modules=[extension()], cmdclass={"build_ext": BuildNative})
