"""The CPU's loops alone, one core, memory in its cache, beside loops written by hand.

    python benchmarks/reduce_loops.py [--json results.jsonl]

Builds benchmarks/cpp/reduce_loops.cpp with the layers below torch and runs it for every instruction
set that this processor has. Prints microseconds for 256 KiB per source, and their ratio to those of
the loop by hand; optionally writes a row for each case as JSON lines. The exit status is 1 if any
loop takes more than `CLAIM` times as long as its loop by hand, or a norm more time per element of
16 bits than `NORM_CLAIMS` times that of an fp32 element.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import native_build  # noqa: E402

from fastcomm.bench.records import RecordWriter  # noqa: E402

CLAIM = 1.25  # most time, over that of the loop by hand
# Most time of a norm per 16-bit element, over that of an fp32 element, by instruction set. AVX2 has
# to split a register of 16-bit elements, and widens fp32 as it loads it.
NORM_CLAIMS = {"avx512": 1.5, "avx2": 1.75}
NBYTES = 256 * 1024  # of each source
SETS = ("avx512", "avx2", "generic")
LACKS = 3  # exit status where this processor lacks the instructions


@dataclass(frozen=True)
class Times:
    """Median times of one case in microseconds; ``by_hand`` is None without a loop by hand."""

    kind: str
    dtype: str
    sources: int
    destinations: int
    us: float
    by_hand: float | None

    @property
    def ratio(self) -> float | None:
        """The time over that of the loop by hand."""
        return None if self.by_hand is None else self.us / self.by_hand


def build() -> Path:
    """Compile what has changed; return the path of the program."""
    library = native_build.build_library(None)
    folder = ROOT / "build" / "reduce_loops"
    folder.mkdir(parents=True, exist_ok=True)
    compiler = native_build.compiler()
    macros = native_build.variant_macros(native_build.native_sources())
    flags = [*native_build.standard_flags(compiler), *native_build.library_flags()]
    flags += ["-I", str(ROOT / "csrc"), *(f"-D{macro}=1" for macro in macros)]
    objects = []
    for source in sorted((ROOT / "benchmarks" / "cpp").glob("loop_floor_*.cpp")):
        variant = native_build.variant_of(source)
        assert variant is not None
        if variant[0] in macros:
            objects.append(folder / f"{source.stem}.o")
            command = [*compiler, *flags, *variant[1], "-c", str(source), "-o", str(objects[-1])]
            subprocess.run(command, check=True)
    program = folder / "reduce_loops"
    main_source = ROOT / "benchmarks" / "cpp" / "reduce_loops.cpp"
    command = [*compiler, *flags, str(main_source), *map(str, objects), str(library)]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def measure(program: Path, isa: str, samples: int, nbytes: int = NBYTES) -> list[Times]:
    """Run every case with one instruction set.

    Raises:
        RuntimeError: this processor lacks the instructions.
        subprocess.CalledProcessError: the program fails.
    """
    environment = {**os.environ, "FASTCOMM_ISA": isa}
    command = [str(program), str(nbytes), str(samples)]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if ended.returncode == LACKS:
        raise RuntimeError(ended.stderr.strip())
    sys.stderr.write(ended.stderr)
    ended.check_returncode()
    return list(_read(ended.stdout.splitlines()[1:]))


def _read(lines: list[str]) -> Iterator[Times]:
    for line in lines:
        kind, dtype, sources, destinations, *times = line.split()
        bar = times.index("|")
        ours, other = times[:bar], times[bar + 1 :]
        us = statistics.median(map(int, ours)) / 1e3
        by_hand = statistics.median(map(int, other)) / 1e3 if other else None
        yield Times(kind, dtype, int(sources), int(destinations), us, by_hand)


def broken(isa: str, rows: list[Times]) -> list[str]:
    """Return a text for each claim that does not hold."""
    found = [
        f"{row.kind} of {row.sources} {row.dtype} to {row.destinations}: {row.ratio:.2f}"
        for row in rows
        if row.ratio is not None and row.ratio > CLAIM
    ]
    # Only norms write no elements.
    norms = {(row.kind, row.dtype): row.us for row in rows if row.destinations == 0}
    for (kind, dtype), us in norms.items():
        if dtype in ("float16", "bfloat16") and isa in NORM_CLAIMS:
            ratio = us / 2 / norms[kind, "float32"]  # NBYTES hold twice as many elements
            if ratio > NORM_CLAIMS[isa]:
                found.append(f"{kind} of {dtype}: {ratio:.2f} of fp32")
    return found


def show(rows: list[Times]) -> None:
    """Print lines by kind, type and number of destinations, with columns by number of sources."""
    from tabulate import tabulate

    body: dict[tuple[str, str, int], list[str]] = {}
    for row in rows:
        cells = body.setdefault((row.kind, row.dtype, row.destinations), [""] * 8)
        share = "" if row.ratio is None else f" ({row.ratio:.2f})"
        cells[row.sources - 1] = f"{row.us:.1f}{share}"
    heads = ["", "dtype", "to", *(f"of {count}" for count in range(1, 9))]
    print(tabulate([[*key, *cells] for key, cells in body.items()], heads), flush=True)


def main() -> int:
    """Measure with every instruction set; return the exit status, 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=101, help="of each loop (default 101)")
    parser.add_argument("--sets", default=",".join(SETS), help="of instructions, with commas")
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    arguments = parser.parse_args()
    program = build()
    writer = RecordWriter(arguments.json, sys.argv) if arguments.json else None
    wrong = []
    for isa in arguments.sets.split(","):
        try:
            rows = measure(program, isa, arguments.samples)
        except RuntimeError as error:
            print(f"{isa}: {error}")
            continue
        print(f"\n{isa}: µs for {NBYTES >> 10} KiB a source (of the loop by hand)")
        show(rows)
        wrong += [f"{isa}, {text}" for text in broken(isa, rows)]
        for row in rows if writer else ():
            record: dict[str, Any] = {"benchmark": "reduce_loops", "isa": isa, "bytes": NBYTES}
            record |= {"kind": row.kind, "dtype": row.dtype, "sources": row.sources}
            record |= {"destinations": row.destinations, "median_us": round(row.us, 2)}
            if row.by_hand is not None and row.ratio is not None:
                record |= {"by_hand_us": round(row.by_hand, 2), "ratio": round(row.ratio, 3)}
            assert writer is not None
            writer.write(record)
    if writer:
        writer.close()
    print("\nabove what is claimed: " + ("; ".join(wrong) if wrong else "nothing"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
