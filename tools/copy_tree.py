"""Copy the sources to another folder, to build another flavour there: ``copy_tree.py FOLDER``.

Everything that git tracks or would track is copied with its times, so that after a second copy only
what has changed is compiled again. What is no longer a source is removed there; ``build`` and
environments stay.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

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


def main() -> None:
    """Copy to the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Copy the sources to another folder.")
    parser.add_argument("folder", type=Path)
    copy(parser.parse_args().folder.resolve())


if __name__ == "__main__":
    main()
