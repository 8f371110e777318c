"""Run the handshake's fuzz target under libFuzzer, with AddressSanitizer and UBSan: ``make fuzz``.

    python tests/fuzz/run.py [--runs 1000000] [--seed 1]

Needs clang with its runtime (Debian: clang-16 and libclang-rt-16-dev); ``$CLANG`` names another.
Inputs that reach new code are kept in build/fuzz/corpus for the next run. An input that fails is
left in build/fuzz; the last line of output is the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support import programs  # noqa: E402


def find_clang() -> str:
    """Return the C++ compiler with libFuzzer."""
    names = [os.environ.get("CLANG", ""), "clang++", *(f"clang++-{n}" for n in range(30, 12, -1))]
    for name in names:
        if name and shutil.which(name):
            return name
    raise SystemExit("clang is missing: apt-get install clang-16 libclang-rt-16-dev, or set CLANG")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["CXX"] = find_clang()
    print(f"compiling with {os.environ['CXX']}", flush=True)
    wanted = ("handshake_libfuzzer", programs.LIBFUZZER)
    programs.make([wanted], quiet=False)
    program = programs.get(*wanted)
    folder = ROOT / "build" / "fuzz"
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    (folder / "seeds").mkdir(exist_ok=True)
    command = [str(program), f"-runs={arguments.runs}", f"-seed={arguments.seed}"]
    # No names of functions: the symbolizer's pipes would be taken for a leak.
    command += [
        "-print_funcs=0",
        "-max_len=512",
        "-timeout=120",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
    ]
    command += [f"-artifact_prefix={folder}/", str(folder / "corpus"), str(folder / "seeds")]
    print(" ".join(command), flush=True)
    done = subprocess.run(command, env={**os.environ, "FC_SEEDS": str(folder / "seeds")})
    if done.returncode != 0:
        print(f"failed; again with: {program} {folder}/<the file named above>")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
