"""Find the CUDA toolkit and choose the GPU architectures to compile for. Needs no driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

# Used where no GPU is visible: Ampere, Hopper and both Blackwells; later ones through PTX.
DEFAULT_ARCHITECTURES = ("8.0", "9.0", "10.0", "12.0")


def find_cuda_home() -> str | None:
    """Return the toolkit's folder, or None without nvcc.

    ``$CUDA_HOME`` and ``$CUDA_PATH`` come first. nvcc itself is asked where it lies, because the
    nvcc on ``PATH`` may be a link or a wrapper script far away from the toolkit.
    """
    told = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if told:
        return told
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        return None
    steps = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True
    )
    here = re.search(r"_HERE_=(.+)", steps.stderr)
    return str((Path(here.group(1).strip()) if here else Path(nvcc).resolve().parent).parent)


def supported_architectures(cuda_home: str) -> set[str]:
    """Return the compute capabilities ("9.0") that this toolkit's nvcc can compile for."""
    nvcc = Path(cuda_home, "bin", "nvcc")
    listed = subprocess.run([nvcc, "--list-gpu-arch"], check=True, capture_output=True, text=True)
    return {f"{number[:-1]}.{number[-1]}" for number in re.findall(r"compute_(\d+)", listed.stdout)}


def compression_options(cuda_home: str) -> tuple[str, ...]:
    """Return nvcc's options for small binaries: by default it compresses PTX, not machine code.

    From CUDA 13 on: every driver that serves its code can unpack it.
    """
    nvcc = Path(cuda_home, "bin", "nvcc")
    said = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.", said)
    return ("-compress-mode=size",) if release and int(release[1]) >= 13 else ()


def gencode_options(architectures: str) -> tuple[str, ...]:
    """Return nvcc's options for a list in the form of ``TORCH_CUDA_ARCH_LIST``.

    Raises:
        SystemExit: an entry is not a compute capability such as "9.0", "9.0a" or "9.0+PTX".
    """
    options = []
    for entry in re.split(r"[;\s]+", architectures.strip()):
        number = re.fullmatch(r"(\d+)\.(\d[af]?)(\+PTX)?", entry)
        if number is None:
            raise SystemExit(
                f"fastcomm: TORCH_CUDA_ARCH_LIST={architectures}: {entry!r} is no compute"
                ' capability. Write them as in "8.0;9.0+PTX"'
            )
        name = number[1] + number[2]
        kinds = ["sm", "compute"] if number[3] else ["sm"]
        options += [f"-gencode=arch=compute_{name},code={kind}_{name}" for kind in kinds]
    return tuple(options)


def choose_architectures(torch: ModuleType, cuda_home: str) -> tuple[str, str]:
    """Return (list in the form of ``TORCH_CUDA_ARCH_LIST``, why it was chosen)."""
    told = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if told and told != "native":
        return told, "TORCH_CUDA_ARCH_LIST"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        seen = {torch.cuda.get_device_capability(index) for index in range(count)}
        return ";".join(f"{major}.{minor}" for major, minor in sorted(seen)), "the visible GPUs"
    supported = supported_architectures(cuda_home)
    chosen = [arch for arch in DEFAULT_ARCHITECTURES if arch in supported]
    return ";".join(chosen) + "+PTX", "no GPU is visible"
