"""The command ``fastcomm``, also as ``python -m fastcomm``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from fastcomm._commands.words import did_you_mean
from fastcomm._version import __version__

# By command: the module whose main(arguments) runs it, and a line of help.
_COMMANDS = {
    "env": ("fastcomm._commands.env", "versions, build, processor, CUDA devices and settings"),
    "explain": ("fastcomm._commands.explain", "which path an operation takes, and why"),
    "check": ("fastcomm.check.cli", "try every way between ranks here"),
    "tune": ("fastcomm.tune.cli", "measure what suits this machine"),
    "bench": ("fastcomm.bench.cli", "measure against other backends"),
    "compare": ("fastcomm.bench.compare", "compare what bench has measured"),
    "advise": ("fastcomm._commands.advise", "say whether more devices are worth it for a script"),
    "run": ("fastcomm._commands.run", "run a script on fastcomm"),
    "top": ("fastcomm._commands.top", "what ranks do now, and which one holds up the others"),
    "profile": ("fastcomm._commands.profile", "read traces of the profiler"),
    "trace": ("fastcomm._commands.trace", "what ranks have called, on a time axis"),
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
    for name, (_, text) in _COMMANDS.items():
        commands.add_parser(name, help=f"{text}; '{name} --help' for more")
    known = tuple(_COMMANDS)
    if words and not words[0].startswith("-") and words[0] not in known:
        meant = did_you_mean(words[0], known)
        parser.error(f"no command: {words[0]}{meant}; known: {', '.join(known)}")
    parser.parse_args(words)  # ends
    return 2


if __name__ == "__main__":
    sys.exit(main())
