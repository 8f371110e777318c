"""Copy the sources to another folder, to build another flavour there: ``copy_tree.py FOLDER``.

With ``--loops`` only the objects of the CPU's loops are copied, from the CPU flavour to the CUDA
flavour: in both they come of the same commands.

Everything that git tracks or would track is copied with its times, so that after a second copy only
what has changed is compiled again. What is no longer a source is removed there; ``build`` and
environments stay.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import native_build

ROOT = Path(__file__).resolve().parent.parent


def sources() -> list[Path]:
    """Return the sources' paths in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [Path(name) for name in listed.split("\0") if name]
    return [name for name in names if (ROOT / name).is_file()]


def copy(target: Path) -> None:
    """Make ``target`` a copy of the sources."""
    wanted = sources()
    known = set(wanted)
    tops = {name.parts[0] for name in wanted}
    for top in tops:
        place = target / top
        for path in place.rglob("*") if place.is_dir() else ():
            built = path.suffix in (".so", ".pyc") or path.name == "_build_info.py"
            if path.is_file() and not built and path.relative_to(target) not in known:
                path.unlink()
    for name in wanted:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place)


def copy_loops(target: Path) -> None:
    """Copy the loops' objects, with what ninja knows of them, unless something is built there."""
    built, place = (root / "build" for root in (ROOT, target))
    built, place = built / "native-cpu", place / "native-cuda"
    if (place / ".ninja_log").exists() or not (built / ".ninja_log").exists():
        return
    (place / "units").mkdir(parents=True, exist_ok=True)
    units = [path for path in (built / "units").glob("*.cpp") if native_build.is_loops(path)]
    objects = [path.with_name(f"{path.name}.o") for path in units]
    for path in [*units, *objects, built / ".ninja_deps", built / ".ninja_log"]:
        shutil.copy2(path, place / path.relative_to(built))


def main() -> None:
    """Copy to the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Copy the sources to another folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loops", action="store_true", help="copy objects of the CPU's loops")
    options = parser.parse_args()
    (copy_loops if options.loops else copy)(options.folder.resolve())


if __name__ == "__main__":
    main()
