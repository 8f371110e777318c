"""Build one wheel that serves every torch from 2.11 on, and needs no compiler: ``make wheels``.

The layers below torch see no torch, so the wheel has them once, as a shared library. A C++
extension of torch serves one minor release, so ``fastcomm._C`` is compiled once for each, against
the headers of that release, in a folder of its own::

    fastcomm/_builds/libfastcomm_native.so
    fastcomm/_builds/torch2_13/_C.cpython-311-x86_64-linux-gnu.so
    fastcomm/_builds/torch2_13/_build_info.py

``fastcomm._build`` chooses the folder. The same file loads with the CPU and with the CUDA build of
a torch: it links only what both have. The wheel is for the Python that runs this::

    python tools/wheels.py                       # dist/fastcomm-...-manylinux_..._x86_64.whl
    python tools/wheels.py --torch 2.13 2.15     # for these alone

Needs g++, ninja, setuptools, pip and auditwheel; torch is downloaded, 600 MB a release, and not
imported. Of each release what a compiler needs is kept, in ``build/wheels``.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import build_record
import native_build
import torch_releases

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
NATIVE = "libfastcomm_native.so"
# What a compiler needs of torch, in its folder. The libraries are named, but not loaded.
LIBRARIES = ("c10", "torch_cpu", "torch_python")
KEPT = ("version.py", "include", *(f"lib/lib{name}.so" for name in LIBRARIES))
# Both libraries export all of fastcomm: what is static in an inline function must exist once.
EXPORTS = "{ global: PyInit_*; *8fastcomm*; local: *; };\n"
# So they are compiled with visible symbols, which nobody replaces: calls may be inlined.
VISIBLE = ("-fvisibility=default", "-fno-semantic-interposition")


def releases() -> list[str]:
    """Return the versions of torch that a wheel has a library for."""
    text = (ROOT / "requirements" / "torch-wheels.txt").read_text()
    return re.findall(r"^torch==(\S+)$", text, re.MULTILINE)


def torch_headers(version: str) -> Path:
    """Return the folder ``torch`` of a release, with what a compiler needs; fetched first."""
    place = PLACE / "torch" / version
    if (place / "torch").exists():
        return place / "torch"
    fetched = place.with_suffix(".fetched")
    for unfinished in (fetched, place):
        shutil.rmtree(unfinished, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run(
        [*command, "--no-deps", "--target", str(fetched), f"torch=={version}"], check=True
    )
    for name in KEPT:
        (place / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        (fetched / "torch" / name).rename(place / "new" / name)
    (place / "new").rename(place / "torch")
    shutil.rmtree(fetched)
    return place / "torch"


def native_library() -> Path:
    """Return the shared library of the layers below torch, built."""
    exports = PLACE / "exports.map"
    exports.parent.mkdir(parents=True, exist_ok=True)
    exports.write_text(EXPORTS)
    flags = [*native_build.library_flags(), *VISIBLE]
    archive = native_build.build(PLACE / "native", flags)
    library = PLACE / NATIVE
    command = [*native_build.compiler(), "-shared", "-s", "-pthread", "-o", str(library)]
    command += ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive", "-ldl", "-lrt"]
    command += [f"-Wl,--version-script={exports}", f"-Wl,-soname={NATIVE}"]
    subprocess.run(command, check=True)
    return library


def minor_of(version: str) -> str:
    """Return "2.13" of "2.13.0+cpu"."""
    return "{}.{}".format(*torch_releases.release(version))


def folder_of(version: str) -> str:
    """Return the name of a build's folder: "torch2_13". fastcomm/_build.py knows it too."""
    return f"torch{minor_of(version).replace('.', '_')}"


def ninja_lines(place: Path, torch: Path, native: Path, extension: str) -> list[str]:
    """Return the lines of the ``build.ninja`` of one ``fastcomm._C``."""
    macros = native_build.variant_macros(native_build.native_sources())
    headers = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include"]
    flags = ["-std=c++20", "-fPIC", "-fopenmp", *native_build.WARNING_FLAGS[:1]]
    flags += [*native_build.CODE_FLAGS, "-O2", *VISIBLE, "-DNDEBUG", "-DTORCH_EXTENSION_NAME=_C"]
    flags += [f"-D{name}=1" for name in macros] + [f"-I{native_build.CSRC}"]
    headers.append(Path(sysconfig.get_path("include")))
    flags += [f"-isystem{header}" for header in headers]
    cxx = shlex.join([*native_build.launcher(), *native_build.compiler(), *flags])
    link = shlex.join([*native_build.compiler(), "-shared", "-s", "-pthread"])
    # torch is loaded before: its libraries are found by their names.
    linked = " ".join(f"-l{name}" for name in LIBRARIES)
    lines = [
        f"rule cxx\n  command = {cxx} -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d\n  deps = gcc\n  description = $out",
        f"rule link\n  command = {link} -o $out $in {native} -L{torch / 'lib'} {linked}"
        f" -Wl,--version-script={PLACE / 'exports.map'} '-Wl,-rpath,$$ORIGIN/..'",
        "  description = $out",
    ]
    sources = native_build.write_units(place / "units", native_build.torch_units())
    lines += [f"build {source.stem}.o: cxx {source}" for source in sources]
    objects = " ".join(f"{source.stem}.o" for source in sources)
    return [*lines, f"build {extension}: link {objects} | {native}", ""]


def torch_library(version: str, native: Path, package_version: str) -> Path:
    """Return the folder with ``fastcomm._C`` for a torch, and its record."""
    torch = torch_headers(version)
    python = sys.implementation.cache_tag
    place = PLACE / f"{folder_of(version)}-{python}"
    result = PLACE / python / folder_of(version)
    extension = f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    with native_build.locked(place):
        lines = ninja_lines(place, torch, native, extension)
        (place / "build.ninja").write_text("\n".join(lines))
        subprocess.run(native_build.ninja_command(place), check=True)
    result.mkdir(parents=True, exist_ok=True)
    shutil.copy(place / extension, result / extension)
    record = build_record.text(
        version=package_version, torch=minor_of(version), cuda=None, architectures=""
    )
    (result / "_build_info.py").write_text(record)
    return result


def plain_wheel(builds: list[Path], native: Path, package_version: str) -> Path:
    """Return the wheel with everything in it, whose tag says nothing but "linux"."""
    from setuptools import Distribution, setup
    from setuptools.command.build_py import build_py

    class Binary(Distribution):
        def has_ext_modules(self) -> bool:
            return True

    class WithBuilds(build_py):
        def run(self) -> None:
            super().run()
            package = Path(self.build_lib, "fastcomm")
            # What a build in the sources has left would go before all that the wheel brings.
            for own in (*package.glob("_C.*.so"), package / "_build_info.py"):
                own.unlink(missing_ok=True)
            folder = package / "_builds"
            folder.mkdir(parents=True)
            shutil.copy(native, folder / NATIVE)
            for build in builds:
                shutil.copytree(build, folder / build.name)

    made = PLACE / "dist"
    for old in (made, PLACE / "lib"):
        shutil.rmtree(old, ignore_errors=True)
    setup(
        license="BSD-3-Clause",
        distclass=Binary,
        cmdclass={"build_py": WithBuilds},
        script_args=[
            *("--quiet", "build", f"--build-base={PLACE / 'lib'}"),
            *("bdist_wheel", f"--dist-dir={made}"),
        ],
    )
    (wheel,) = made.glob(f"fastcomm-{package_version}-*.whl")
    return wheel


def tagged(wheel: Path, place: Path) -> Path:
    """Return the wheel with the tag that its symbols deserve, as auditwheel finds it."""
    place.mkdir(exist_ok=True)
    before = set(place.glob("*.whl"))
    command = [sys.executable, "-m", "auditwheel", "repair", str(wheel), "-w", str(place)]
    command += [word for name in (*LIBRARIES, "torch") for word in ("--exclude", f"lib{name}.so")]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode != 0:
        raise SystemExit(f"wheels: auditwheel refuses {wheel}:\n{said.stdout}{said.stderr}")
    written = re.findall(r"Fixed-up wheel written to (.+)", said.stdout + said.stderr)
    return Path(written[-1]) if written else next(iter(set(place.glob("*.whl")) - before))


def main() -> None:
    """Build, and say the size."""
    versions = releases()
    minors = [minor_of(version) for version in versions]
    parser = argparse.ArgumentParser(description="Build a wheel that needs no compiler.")
    parser.add_argument("--torch", nargs="+", default=minors, choices=minors, metavar="MINOR")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)  # where setuptools looks for pyproject.toml
    from fastcomm._version import __version__ as package_version

    native = native_library()
    builds = [
        torch_library(version, native, package_version)
        for version in versions
        if minor_of(version) in options.torch
    ]
    wheel = tagged(plain_wheel(builds, native, package_version), DIST)
    print(f"{wheel}: {wheel.stat().st_size / 2**20:.1f} MiB, for torch {', '.join(options.torch)}")


if __name__ == "__main__":
    main()
