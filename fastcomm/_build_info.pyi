"""The record of a build, which setup.py writes beside this stub."""

FASTCOMM_VERSION: str
TORCH_VERSION: str
NEWEST_KNOWN_TORCH: str
IS_NEWER_TORCH: bool
CUDA_VERSION: str | None
PYTHON_TAG: str
FLAVOUR: str
CUDA_ARCHITECTURES: str
COMPILER: str
SOURCES: str
