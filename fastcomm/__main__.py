"""``fastcomm {env,explain,check,tune,bench,compare,run}``, also as ``python -m fastcomm``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

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
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    env = commands.add_parser("env", help="versions, build, processor, CUDA devices and settings")
    env.add_argument("--json", action="store_true", help="print JSON")
    for name, (_, text) in _COMMANDS.items():
        commands.add_parser(name, help=f"{text}; '{name} --help' for more")
    options = parser.parse_args(words)

    from fastcomm._machine import env as environment

    found = environment.collect()
    print(
        json.dumps(found, indent=2, default=str) if options.json else environment.format_text(found)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
