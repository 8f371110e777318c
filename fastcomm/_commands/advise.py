"""``fastcomm advise script.py ...``: whether more devices are worth it for a script's training."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fastcomm._commands.common import (
    TABLES,
    is_file,
    parsed,
    run,
    several_ranks,
    with_script,
)

WITH_VALUE = ("--ranks", "--turns", "--links", "--json", "--plot")
NAME = "fastcomm advise"


def build_parser() -> argparse.ArgumentParser:
    """The command line of advise, for its help: what follows the script's name is the script's."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        usage=f"{NAME} [-h] [option ...] {{script.py | -m module}} [argument ...]",
        description="Say whether a script that trains on one device would be faster on several "
        "devices of this machine, and how. Copies of the script run some of its training steps, "
        "by turns, alone and beside each other; nothing in it has to be changed. Its batches may "
        "be made smaller; what it writes to files, it writes several times.",
        epilog="docs/advise.md tells how steps are predicted.",
    )
    parser.add_argument(
        "--ranks",
        type=lambda text: _listed(text, several_ranks),
        metavar="N,...",
        help="numbers of devices to try (default: 2, 4 and so on up to this machine's, at most 8)",
    )
    parser.add_argument(
        "--verify", action="store_true", help="also run what is predicted, and tell the errors"
    )
    parser.add_argument(
        "--turns",
        type=turns,
        default=6,
        metavar="N",
        help="turns of each way to train, 2 or more; more are more exact (default: %(default)s, "
        "about 40 seconds)",
    )
    parser.add_argument(
        "--links",
        type=lambda text: _listed(text, gigabits),
        default=[10.0],
        metavar="GBIT,...",
        help="speeds of links between hosts to predict for, in Gbit/s (default: 10)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all of it as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw time per step against devices, as PNG"
    )
    parser.add_argument("script", nargs="?", metavar="script.py", help="the script to run")
    parser.add_argument("-m", dest="module", metavar="module", help="or a module, as python -m")
    parser.add_argument("argument", nargs="*", help="passed on to it, options too")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit status is 0 with an advice, 1 without one, 2 for wrong usage."""
    options, words, as_module = with_script(build_parser(), argv, WITH_VALUE)
    if not is_file(NAME, words, as_module):
        return 2
    needed = (*TABLES, *(("matplotlib",) if options.plot else ()))
    return run(NAME, needed, lambda: _advise(options, words, as_module))


def _advise(options: argparse.Namespace, words: Sequence[str], as_module: bool) -> int:
    from fastcomm._advise.advise import AdviseError, advise_on
    from fastcomm._advise.sources import OfScript

    train = OfScript(tuple(words), as_module)
    try:
        with _progress() as progress:
            advice = advise_on(
                train, options.ranks, options.verify, options.turns, options.links, progress
            )
    except AdviseError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    print(advice)
    if options.json is not None:
        options.json.write_text(json.dumps(advice.as_json(), indent=1) + "\n")
    if options.plot is not None:
        advice.plot(options.plot)
    return 0


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that tells what goes on: in one line of a terminal, else in lines."""
    if not sys.stderr.isatty():
        yield lambda text: print(f"{NAME}: {text}", file=sys.stderr, flush=True)
        return
    from tqdm import tqdm

    with tqdm(bar_format="{desc} [{elapsed}]", file=sys.stderr, leave=False) as bar:
        yield bar.set_description_str


def turns(text: str) -> int:
    """Parse a number of turns."""
    return parsed(int, text, lambda value: value >= 2, "a whole number, 2 or more")


def gigabits(text: str) -> float:
    """Parse a speed above 0."""
    return parsed(float, text, lambda value: 0 < value < float("inf"), "Gbit/s above 0")


def _listed(text: str, parse: Any) -> list[Any]:
    return [parse(word) for word in text.split(",")]
