"""The steps of ``make gpu-check``: their commands, limits, and how their results are judged.

A command is started without a shell. Each step stays below nine minutes, so that a machine that
ends commands after ten can run any of them.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpu_programs
from gpu_device import Device

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "benchmarks"):  # a step's judge asks the package, built in place
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
# Tests that need CUDA, and those that simulated devices run elsewhere.
MARKED = "gpu or accelerator"
PYTEST = [sys.executable, "-m", "pytest", "-m", MARKED, "--durations=20", "-p", "no:cacheprovider"]
PYTEST += ["-p", "no:randomly", "-p", "no:xdist"]
_MOST_RANKS = 8  # of a check and of measurements; two share a GPU where there is one
_RIGHT = ("ok", "slow links")
LARGE = 16 << 20  # bytes from which the memory sets the pace


@dataclass(frozen=True)
class Place:
    """Where a check runs: the folder of its results, and the device or why there is none.

    A simulated device is a rehearsal on the accelerator of ``tests/sim``, called "sim".
    """

    out: Path
    device: Device | str
    simulated: bool = False

    @property
    def python(self) -> list[str]:
        """The words that start Python so that the device is there."""
        if not self.simulated:
            return [sys.executable]
        # Python imports the package as it starts, before the folder it runs in is on its path.
        folders = f"{ROOT / 'tests' / 'sim' / 'startup'}:{ROOT}"
        return ["env", f"PYTHONPATH={folders}", sys.executable]

    @property
    def ranks(self) -> int:
        """Ranks of a check and of measurements: one for each GPU, or two on one."""
        count = self.device.count if isinstance(self.device, Device) else 0
        return 2 if self.simulated else max(2, min(count, _MOST_RANKS))

    @property
    def kind(self) -> str:
        """The device's type."""
        return "sim" if self.simulated else "cuda"

    @property
    def architectures(self) -> str:
        """What to compile for, as ``TORCH_CUDA_ARCH_LIST`` has it."""
        if isinstance(self.device, Device):
            return self.device.capability
        return os.environ.get("TORCH_CUDA_ARCH_LIST", "9.0")


@dataclass(frozen=True)
class Verdict:
    """A step's outcome: "green", "red" or "skipped", why, and lines for the reader."""

    state: str
    reason: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: for ``--steps``.
        what: for ``--list``.
        expected: seconds that it takes, roughly; with less left it is not started.
        limit: seconds; what runs longer is killed and red.
        commands: one after the other, up to the first that fails.
        judge: reads what they left, if all of them ended with 0, or with 1 where that only says
            that something was found wrong: from pytest, or in a step that `judges_failures`.
        needs: a step without which it cannot be green.
        leaves: patterns of files in the repository without which it has to run again.
        needs_device: whether it needs a device.
        devices: how many it needs; with fewer it is skipped.
        output: the file in `Place.out` that takes the last command's standard output.
        rehearsed: whether simulated devices can run it.
    """

    name: str
    what: str
    expected: int
    limit: int
    commands: Callable[[Place], list[list[str]]]
    judge: Callable[[Place], Verdict] = field(default=lambda place: Verdict("green"))
    needs: str = ""
    leaves: tuple[str, ...] = ()
    needs_device: bool = True
    devices: int = 1
    output: str = ""
    judges_failures: bool = False
    rehearsed: bool = False


def environment(place: Place) -> dict[str, str]:
    """Return the environment variables of all steps, besides those of this process."""
    found = {
        "FASTCOMM_CUDA": "1",
        "PYTHONUNBUFFERED": "1",
        "FASTCOMM_VERDICTS": "off",  # a step's findings must not become another's settings
        "FASTCOMM_TUNING": "off",
        "TORCH_CUDA_ARCH_LIST": place.architectures,
    }
    # Gloo looks its own host name up, which fails without a network.
    interfaces = {name for _, name in socket.if_nameindex()}
    if "GLOO_SOCKET_IFNAME" not in os.environ and "lo" in interfaces:
        found["GLOO_SOCKET_IFNAME"] = "lo"
    return found


def verdict_of_tests(results: Path) -> Verdict:
    """Read what pytest left: if all tests were skipped, that is no success."""
    outcomes: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    failed = []
    for case in ElementTree.parse(results).iter("testcase"):
        kinds = {child.tag: child for child in case}
        if wrong := {"failure", "error"} & kinds.keys():
            outcomes["failed"] += 1
            failed.append(f"{wrong.pop()}: {case.get('classname')}::{case.get('name')}")
        elif (skip := kinds.get("skipped")) is not None:
            outcomes["skipped"] += 1
            skips[skip.get("message") or "without a reason"] += 1
        else:
            outcomes["passed"] += 1
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.items())) or "no tests"
    lines = [counts, *failed[:20], *(f"skipped {count}: {why}" for why, count in skips.items())]
    if failed or not outcomes:
        return Verdict("red", "; ".join([counts, *failed[:3]]), lines)
    if not outcomes["passed"]:
        return Verdict("skipped", "; ".join(skips), lines)
    return Verdict("green", counts, lines)


def _tests(name: str, *words: str) -> tuple[Callable[[Place], list[list[str]]], Any]:
    """Return the command and the judge of a step that runs pytest."""

    def command(place: Place) -> list[list[str]]:
        where = ["--accelerator", "sim"] if place.simulated else []
        return [[*PYTEST, *where, f"--junitxml={place.out / name}.xml", *words]]

    return command, lambda place: verdict_of_tests(place.out / f"{name}.xml")


def summary(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each large measurement of the kernels, as a share of a plain copy."""
    lines = [
        f"{row['method']:>16} of {row['sources']:2}, {row['dtype']:>16}, {row['layout']:>9},"
        f" {row['segments']:3} x {row['bytes'] / row['segments'] / 2**20:6.1f} MiB:"
        f" {row['gbps']:6.0f} GB/s, {100 * row['share_of_copy']:4.0f} % of a copy"
        f" ({100 * row['spread']:.0f} % spread)"
        for row in records
        if row.get("kind") == "bandwidth" and row["bytes"] >= LARGE
    ]
    lines += [
        f"{row['method']:>16} of {row['segments']:4} segments: {row['median_us']:6.2f} us a call"
        for row in records
        if row.get("kind") == "launch"
    ]
    return lines


def _judge_kernels(place: Place) -> Verdict:
    records = [json.loads(line) for line in (place.out / "cuda-kernels.jsonl").open()]
    rows = [row for row in records if row["type"] == "row"]
    return Verdict("green" if rows else "red", f"{len(rows)} rows", summary(rows))


def _device(place: Place) -> list[str]:
    return ["--device", place.kind]


def _device_of_one(place: Place) -> list[str]:
    """Return the same for what simulated devices do not run: there the CPU does."""
    return ["--device", "cpu" if place.simulated else "cuda"]


def _script(
    name: str, *words: str, on: Callable[[Place], list[str]]
) -> tuple[Callable[[Place], list[list[str]]], Any]:
    """Return the command and the judge of a step that runs a benchmark in Python."""

    def command(place: Place) -> list[list[str]]:
        path = place.out / f"{name}.jsonl"
        path.unlink(missing_ok=True)  # records are never overwritten
        return [[*place.python, *words, *on(place), "--json", str(path)]]

    def judge(place: Place) -> Verdict:
        rows = len((place.out / f"{name}.jsonl").read_text().splitlines()) - 1
        return Verdict("green" if rows > 0 else "red", f"{rows} rows")

    return command, judge


def _visible(count: int) -> str:
    """Return the setting that lets CUDA see so many devices, of those that it sees here."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = given.split(",") if given else [str(device) for device in range(count)]
    return f"CUDA_VISIBLE_DEVICES={','.join(names[:count])}"


def _checked(
    name: str, *words: str, first_of: int = 0, ranks: int = 0
) -> tuple[Callable[[Place], list[list[str]]], Any]:
    """Return the command and the judge of a step that runs ``fastcomm check``.

    With ``first_of`` it sees so many GPUs, and all kernels are loaded when a process begins, so
    that none is while a rank waits for another. Else each is at its first use, the default.
    """

    def command(place: Place) -> list[list[str]]:
        first = ["env", "CUDA_MODULE_LOADING=EAGER", _visible(first_of)] if first_of else []
        start = [*first, *place.python]
        options = ["--quiet", "--devices", str(ranks or place.ranks), "--timeout", "110", *words]
        to = ["--json", str(place.out / f"{name}.json")]
        return [[*start, "-m", "fastcomm", "check", *options, *to]]

    return command, lambda place: _judge_check(place.out / f"{name}.json")


def _judge_check(path: Path) -> Verdict:
    """Read the verdict of every path; if there is one GPU, the ranks share it."""
    from fastcomm.check import machine, report

    found = json.loads(path.read_text())
    rows = found["rows"]
    paths = report.paths_of(rows)
    verdicts = {name: report.verdict_of(of_path) for name, of_path in paths.items()}
    facts = found["devices"]["machine"]
    lines = machine.lines(facts)
    lines += [f"{name}: {verdict}" for name, verdict in verdicts.items()]
    lines += [
        f"{row['path']}, {row['check']}, {row['operation']}: {row['verdict']}, {row['why']}"
        for row in rows
        if row["verdict"] not in ("ok", "not run")
    ]
    lines += [f"warning: {text}" for text in [*machine.warnings(facts), *report.warnings(rows)]]
    if len(paths) == 1 and rows[0]["verdict"] == "not used":  # asked for alone
        return Verdict("skipped", f"{rows[0]['path']}: {rows[0]['why']}", lines)
    good = [name for name in verdicts if name.startswith("devices") and verdicts[name] in _RIGHT]
    state = "red" if report.is_bad(rows) or not good else "green"
    return Verdict(state, f"{len(good)} ways between devices are right", lines)


def _tune(place: Place) -> list[list[str]]:
    words = ["tune", "--quiet", "--ranks", "--devices", str(place.ranks)]
    words += ["--dry-run", "--budget", "60"]
    return [[*place.python, "-m", "fastcomm", *words, "--json", str(place.out / "tune.json")]]


def _judge_tune(place: Place) -> Verdict:
    rows = json.loads((place.out / "tune.json").read_text())["rows"]
    lines = [f"{row['step']}, {row['candidate'] or 'default'}: {row['ratio']}" for row in rows]
    chosen = [str(row["candidate"] or "default") for row in rows if row["chosen"]]
    return Verdict("green" if chosen else "red", ", ".join(chosen), lines)


def _build(place: Place) -> list[list[str]]:
    return [
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        [sys.executable, "-m", "fastcomm", "env"],
    ]


def _programs(place: Place) -> list[list[str]]:
    return [[sys.executable, "tools/gpu_programs.py", "--architectures", place.architectures]]


def _kernels(place: Place) -> list[list[str]]:
    return [*_programs(place), [str(gpu_programs.FOLDER / gpu_programs.BENCHMARK)]]


_PROGRAM_TESTS = "tests/gpu/test_programs.py"
_MEMORY = _tests("memory", "-k", "memory_is_used", _PROGRAM_TESTS)
_PEER_TESTS = "tests/gpu/test_peers.py"
_KILLED_TESTS = "tests/gpu/test_killed_ranks.py"
_WAYS = ("handle", "descriptor")


def _peers(name: str, what: str, expected: int, chosen: str) -> Step:
    """Return a step with some of the tests of collectives between processes."""
    return Step(name, what, expected, 530, *_tests(name, "-k", chosen, _PEER_TESTS), needs="build")


# Nobody knows how long they take where processes get the device in turn: each long one has its own
# step.
_PEERS = tuple(
    _peers(f"peers-{way}", f"collectives between processes, {way}s", 150, f"not soak and {way}")
    for way in _WAYS
)
_SOAKS = tuple(
    _peers(
        f"{case}-{ranks}-{way}",
        f"{what}, by {ranks} processes, {way}s",
        200,
        f"soak_{case} and {name} and {way}",
    )
    for case, what in (("replays", "1,000 replays of graphs"), ("growth", "10,000 operations"))
    for ranks, name in ((2, "by_two"), (4, "by_four"))
    for way in _WAYS
)
_NOTICED = _peers("noticed", "growth that there is, is noticed", 60, "growth_is_noticed")
_REST = _tests(
    "tests",
    "-k",
    "not memory_is_used",
    "--ignore",
    _PEER_TESTS,
    "--ignore",
    _KILLED_TESTS,
    "tests/gpu",
)
_PACKAGE = _tests("package", "tests/package")
_FUSED = _script("fused-reduce-cuda", "benchmarks/fused_reduce_cuda.py", on=_device_of_one)
_SINGLE = _script("single-process-cuda", "benchmarks/single_process.py", on=_device_of_one)
_BENCH_OPS = "all_reduce,all_reduce_shared,reduce_scatter_tensor,all_gather_into_tensor"
_BENCH = _script(
    *("bench", "-m", "fastcomm", "bench", "--quiet", "--budget", "100"),
    *("--ops", f"{_BENCH_OPS},broadcast,all_to_all_single", "--sizes", "4K:64M:16"),
    *("--backends", "fastcomm,symm_mem_one_shot,symm_mem_two_shot,nccl"),
    on=lambda place: [*_device(place), "--ranks", str(place.ranks)],
)


def _judge_bench(place: Place) -> Verdict:
    """Show what was measured beside what benchmarks/expected.py predicts for such GPUs."""
    import expected

    verdict: Verdict = _BENCH[1](place)
    records = [json.loads(line) for line in (place.out / "bench.jsonl").open()]
    assert isinstance(place.device, Device)
    rows = [row for row in records if row["type"] == "row"]
    lines = expected.beside(rows, place.device.name, place.device.count)
    return Verdict(verdict.state, verdict.reason, lines)


_BETWEEN = "handle,descriptor,fabric,pinned"


def _first(name: str, what: str, gpus: int, ranks: int, paths: str, expected: int) -> Step:
    check = _checked(name, "--paths", paths, first_of=gpus, ranks=ranks)
    return Step(
        *(name, f"{what}, loaded eagerly", expected, 530, *check),
        needs="build",
        devices=gpus,
        judges_failures=True,
    )


_FIRST = (
    *(
        _first(f"first-{way}", f"two ranks on one GPU, {way}", 1, 2, way, 60)
        for way in ("handle", "descriptor", "pinned")
    ),
    *(
        _first(f"first-{count}-gpus", f"{count} ranks on {count} GPUs", count, count, _BETWEEN, 200)
        for count in (2, 4, 8)
    ),
)
_KILLED = _tests("killed", _KILLED_TESTS)
_BUILT = (f"fastcomm/_C.{sys.implementation.cache_tag}*.so", "fastcomm/_build_info.py")
_MADE = tuple(f"build/gpu/{name}" for name in (*gpu_programs.TESTS, gpu_programs.BENCHMARK))

STEPS = (
    Step(
        *("build", "compile fastcomm for the device, import it", 120, 530, _build),
        leaves=_BUILT,
        needs_device=False,
    ),
    Step(
        *("programs", "compile the C++ programs, unless build/gpu has them", 120, 530, _programs),
        leaves=_MADE,
        needs_device=False,
    ),
    *_FIRST,
    Step(
        *("killed", "a rank killed while others load kernels lazily", 40, 200, *_KILLED),
        needs="build",
        rehearsed=True,
    ),
    Step(
        *("tests", "tests/gpu, without the sanitizer", 180, 530, *_REST),
        needs="build",
        rehearsed=True,
    ),
    *_PEERS,
    *_SOAKS,
    _NOTICED,
    Step(
        *("package", "tests/package on devices", 90, 530, *_PACKAGE),
        needs="build",
        rehearsed=True,
    ),
    Step("memory", "the programs under compute-sanitizer", 120, 530, *_MEMORY, needs="build"),
    Step(
        *("kernels", "bandwidth of the kernels beside a copy", 60, 300, _kernels, _judge_kernels),
        output="cuda-kernels.jsonl",
    ),
    Step(
        *("check", "every way between processes", 200, 530, *_checked("check")),
        needs="build",
        judges_failures=True,
        rehearsed=True,
    ),
    Step(
        *("bench", "collectives between processes, in Python", 150, 530, _BENCH[0], _judge_bench),
        needs="build",
        rehearsed=True,
    ),
    Step(
        *("tune", "thresholds, blocks, push or pull", 100, 400, _tune, _judge_tune),
        needs="build",
        rehearsed=True,
    ),
    Step(
        *("fused", "gradients reduced in one pass, in Python", 60, 300, *_FUSED),
        needs="build",
        rehearsed=True,
    ),
    Step(
        *("primitives", "one process's primitives, in Python", 90, 400, *_SINGLE),
        needs="build",
        rehearsed=True,
    ),
)
