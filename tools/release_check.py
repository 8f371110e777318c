"""What must hold before a release and takes too long for every change: ``make release-check``.

First the tests marked ``release``, in the environment that runs this: repeated seeds, a thousand
groups, models of three ranks, every float. Then other Pythons and other torches, each in a copy of
the sources and an environment of its own under ``build/release``: built, and tested from the layers
that use torch upwards (those below see neither). Last the CUDA flavour with the oldest torch, which
is compiled by nvcc, imported, and asked for ``env`` and ``explain``, without a device::

    python tools/release_check.py                     # everything
    python tools/release_check.py --only release      # or one pair: --only 3.12; frameworks; cuda
    python tools/release_check.py --record            # and write docs/release-check.json

Needs the Pythons named in `PAIRS`, on PATH or in pyenv's folder, and nvcc. Every part runs even if
one before it failed; the exit status says whether all went well.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import copy_tree
import cuda_toolkit
import durations

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "release-check.json"
# The gate has 3.11 with 2.13, and with requirements/torch-newest.txt and CUDA.
PAIRS = {"3.10": "torch==2.11.0", "3.12": "torch==2.12.0", "3.13": "torch==2.14.1"}
TESTS = "tests/build tests/c10d tests/package"
FRAMEWORKS = ROOT / "requirements" / "frameworks.txt"
EXAMPLES = ["-m", "pytest", "tests/package/docs/test_docs.py", "-k", "example"]
CUDA_PAIR = ("3.12", "torch==2.11.0")  # from the usual index, whose wheels have CUDA
ENV, EXPLAIN = (["-m", "fastcomm", word] for word in ("env", "explain"))
IMPORTED = """
from fastcomm import _build_info, _native
_native.load()
assert _build_info.FLAVOUR == "cuda", _build_info.FLAVOUR
print(f"CUDA {_build_info.CUDA_VERSION} for {_build_info.CUDA_ARCHITECTURES}: imported")
"""


def interpreters(version: str) -> Iterator[str]:
    """Yield where a Python of this version may be."""
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))


def find_python(version: str) -> str | None:
    """Return a Python that starts and can make environments; pyenv's stand-ins may not start."""
    for path in interpreters(version):
        code = f"import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
        if subprocess.run([path, "-c", code], capture_output=True).returncode == 0:
            return path
    return None


def run(
    name: str,
    command: Sequence[str],
    results: Path | None,
    cwd: Path = ROOT,
    **environment: str,
) -> Any:
    """Run one part; return what is recorded of it."""
    print(f"\n==== {name}: {' '.join(command)}", flush=True)
    begin = time.monotonic()
    if results:
        results.unlink(missing_ok=True)
    status = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}).returncode
    seconds = round(time.monotonic() - begin)
    print(f"==== {name}: exit status {status} after {seconds} s", flush=True)
    tests = dict(durations.read([results])[1]) if results and results.exists() else {}
    return {"name": name, "status": status, "seconds": seconds, "tests": tests}


def check_pair(version: str, torch: str) -> Any:
    """Build and test with another Python and another torch."""
    name = f"Python {version}, {torch}"
    python = find_python(version)
    if python is None:
        print(
            f"\n==== {name}: there is no python{version} on PATH or in pyenv's folder: install it"
        )
        return {"name": name, "status": 1, "seconds": 0, "tests": {}}
    tree = ROOT / "build" / "release" / version
    copy_tree.copy(tree)
    command = ["make", "-C", str(tree), "test", f"PYTHON={python}", "VENV=.venv", f"TORCH={torch}"]
    command += [f"ARGS={TESTS}"]
    return run(name, command, tree / "build" / "junit.xml", FASTCOMM_CUDA="0")


def check_frameworks() -> Any:
    """Run the examples in the documents where the frameworks that they use are installed.

    An example that is skipped is a failure: then a framework of the list is not there.
    """
    name = "examples with frameworks"
    tree = ROOT / "build" / "release" / "frameworks"
    copy_tree.copy(tree)
    make = ["make", "-C", str(tree), "build", f"PYTHON={sys.executable}", "VENV=.venv"]
    done = run(name, make, None, FASTCOMM_CUDA="0")
    own, results = str(tree / ".venv" / "bin" / "python"), tree / "build" / "junit.xml"
    install = ["-m", "pip", "install", "-q", "-r", str(FRAMEWORKS)]
    for words, options in (
        (install, {"DS_BUILD_OPS": "0"}),
        ([*EXAMPLES, f"--junitxml={results}"], {"DS_ACCELERATOR": "cpu"}),
    ):
        if done["status"] == 0:
            next_one = run(name, [own, *words], results, tree, **options)
            done = {**next_one, "seconds": done["seconds"] + next_one["seconds"]}
    if done["tests"].get("skipped"):
        print(f"==== {name}: {done['tests']['skipped']} skipped", flush=True)
        done["status"] = done["status"] or 1
    return done


def check_cuda() -> Any:
    """Compile the CUDA flavour with the oldest torch, import it, and let it describe itself."""
    version, torch = CUDA_PAIR
    name = f"CUDA flavour, Python {version}, {torch}"
    python = find_python(version)
    missing = "nvcc" if cuda_toolkit.find_cuda_home() is None else ""
    missing = missing or ("" if python else f"python{version}, on PATH or in pyenv's folder")
    if missing:
        print(f"\n==== {name}: there is no {missing}: install it")
        return {"name": name, "status": 1, "seconds": 0, "tests": {}}
    tree = ROOT / "build" / "release" / "cuda"
    copy_tree.copy(tree)
    architectures = os.environ.get("TORCH_CUDA_ARCH_LIST", "9.0")
    options = {"FASTCOMM_CUDA": "1", "TORCH_CUDA_ARCH_LIST": architectures}
    make = ["make", "-C", str(tree), "build", f"PYTHON={python}", "VENV=.venv", f"TORCH={torch}"]
    built = run(name, make, None, ROOT, **options)
    if built["status"] == 0:
        own = str(tree / ".venv" / "bin" / "python")
        for what, words in (("import", ["-c", IMPORTED]), ("env", ENV), ("explain", EXPLAIN)):
            looked = run(f"{name}: {what}", [own, *words], None, tree)
            built["seconds"] += looked["seconds"]
            built["status"] = built["status"] or looked["status"]
    return built


def check_marked() -> Any:
    """Run the tests that are marked ``release``."""
    results = ROOT / "build" / "junit-release.xml"
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile"]
    command += ["--no-loadscope-reorder", "--release", f"--junitxml={results}"]
    return run("tests marked release", command, results)


def main() -> int:
    """Run the parts; return the exit status."""
    parser = argparse.ArgumentParser(description="What must hold before a release.")
    parser.add_argument(
        "--only", choices=["release", *PAIRS, "frameworks", "cuda"], help="one part"
    )
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    options = parser.parse_args()
    parts = []
    if options.only in (None, "release"):
        parts.append(check_marked())
    for version, torch in PAIRS.items():
        if options.only in (None, version):
            parts.append(check_pair(version, torch))
    if options.only in (None, "frameworks"):
        parts.append(check_frameworks())
    if options.only in (None, "cuda"):
        parts.append(check_cuda())
    total = sum(part["seconds"] for part in parts)
    print(f"\n==== {total} s together")
    for part in parts:
        verdict = "passed" if part["status"] == 0 else "FAILED"
        print(f"{verdict} {part['seconds']:6} s  {part['name']}: {part['tests']}")
    if options.record:
        today = datetime.date.today().isoformat()
        text = json.dumps({"date": today, "seconds": total, "parts": parts}, indent=1)
        RECORD.write_text(text + "\n")
    return 0 if all(part["status"] == 0 for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
