"""The documents as a site, for browsers, in a folder that holds a site for each version.

    python tools/docs_site.py                     # build/site/VERSION, and build/site/index.html
    python tools/docs_site.py --into FOLDER       # beside the versions that are there
    python tools/docs_site.py --base /fastcomm/   # if a server shows the folder under that path

Sphinx's warnings are errors, and so are links within the site that lead nowhere. Nothing that the
site needs comes from a network; its menu of versions needs a server, such as ``python -m
http.server`` in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
_MOVED = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}">'


class _Page(HTMLParser):
    """Links of a page, and what links may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" and value:
                self.places.add(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield a line for each link of a site's pages to a file or place that is not there."""
    written = (path for path in site.rglob("*.html") if "_static" not in path.parts)
    pages = {path: _Page(path) for path in sorted(written)}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{path.relative_to(site)}: {link}: no such file"
            elif target in pages and parts.fragment not in ("", *pages[target].places):
                yield f"{path.relative_to(site)}: {link}: no such place"


def write_versions(folder: Path, base: str) -> None:
    """Write the menu of all versions in a folder, and a page that leads to the newest.

    Args:
        folder: each of its folders that holds an ``objects.inv`` is the site of a version.
        base: path of the folder on its server, with slashes at both ends.
    """
    found = [path.parent.name for path in folder.glob("*/objects.inv")]
    versions = sorted(found, key=Version, reverse=True)
    menu = [{"version": version, "url": f"{base}{version}/"} for version in versions]
    (folder / "versions.json").write_text(json.dumps(menu, indent=2) + "\n")
    (folder / "index.html").write_text(_MOVED.format(f"{versions[0]}/index.html"))


def build(site: Path, base: str) -> int:
    """Build a site with Sphinx, and return its exit status."""
    environment = {**os.environ, "FASTCOMM_SITE_VERSIONS": f"{base}versions.json"}
    # -E: what conf.py makes of pages is nothing that Sphinx would see a change of.
    strictly = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "html"]
    doctrees = str(ROOT / "build" / "doctrees")
    command = [*strictly, "-d", doctrees, str(ROOT / "docs"), str(site)]
    return subprocess.run(command, env=environment).returncode


def main(arguments: list[str] | None = None) -> int:
    """Build the site of this version beside the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--into", type=Path, metavar="FOLDER", default=ROOT / "build" / "site")
    parser.add_argument("--base", default="/", help="the folder's path on its server (%(default)s)")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    from fastcomm._version import __version__

    folder, base = options.into.resolve(), f"/{options.base.strip('/')}/".replace("//", "/")
    site = folder / __version__
    if status := build(site, base):
        return status
    broken = list(broken_links(site))
    print("\n".join(broken), file=sys.stderr, end="\n" if broken else "")
    write_versions(folder, base)
    print(f"{len(list(site.rglob('*.html')))} pages: {folder / 'index.html'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
