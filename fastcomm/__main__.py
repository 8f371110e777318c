"""``fastcomm {env,explain,check,tune,bench,compare,run}``, also as ``python -m fastcomm``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

from fastcomm._commands.common import run
from fastcomm._commands.words import did_you_mean
from fastcomm._version import __version__

# By command: the module whose main(arguments) runs it, and a line of help.
_COMMANDS = {
    "explain": ("fastcomm._commands.explain", "which path an operation takes, and why"),
    "check": ("fastcomm.check.cli", "try every way between ranks here"),
    "tune": ("fastcomm.tune.cli", "measure what suits this machine"),
    "bench": ("fastcomm.bench.cli", "measure against other backends"),
    "compare": ("fastcomm.bench.compare", "compare what bench has measured"),
    "run": ("fastcomm._commands.run", "run a script on fastcomm"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _COMMANDS:
        status: int = importlib.import_module(_COMMANDS[words[0]][0]).main(words[1:])
        return status
    parser = argparse.ArgumentParser(prog="fastcomm", description="fastcomm, from a shell.")
    parser.add_argument("--version", action="version", version=f"fastcomm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    env = commands.add_parser(
        "env",
        help="versions, build, processor, CUDA devices and settings",
        description="Print versions, the build, processor, CUDA devices and settings in force.",
    )
    env.add_argument("--json", action="store_true", help="print JSON")
    for name, (_, text) in _COMMANDS.items():
        commands.add_parser(name, help=f"{text}; '{name} --help' for more")
    known = ("env", *_COMMANDS)
    if words and not words[0].startswith("-") and words[0] not in known:
        meant = did_you_mean(words[0], known)
        parser.error(f"no command: {words[0]}{meant}; known: {', '.join(known)}")
    options = parser.parse_args(words)
    return run("fastcomm env", (), lambda: _env(options.json))


def _env(as_json: bool) -> int:
    from fastcomm._machine import env as environment

    found = environment.collect()
    print(json.dumps(found, indent=2, default=str) if as_json else environment.format_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
