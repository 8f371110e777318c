"""tools/gpu_check.py: what is run, what is not and why, what is kept, what counts as good.

Steps are commands of the shell here; everything else is as on a machine with a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_check
import gpu_steps
import pytest
from gpu_device import Device
from gpu_steps import Place, Step, Verdict
from support import gpu, programs
from support.patience import SOON

GPU = Device("NVIDIA H200", "9.0", 1, "13.0")
Check = Callable[..., dict[str, dict[str, Any]]]


def _shell(name: str, text: str, **options: Any) -> Step:
    return Step(name, "a test", 1, 30, lambda place: [["sh", "-c", text]], **options)


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def run(
        *steps: Step,
        digest: str = "d",
        device: Device | str = GPU,
        budget: float = 1000,
        again: bool = False,
    ) -> dict[str, dict[str, Any]]:
        place = Place(tmp_path / "out", device)
        place.out.mkdir(exist_ok=True)
        state = gpu_check.State(tmp_path / "state.json", digest)
        return gpu_check.check(steps, place, state, budget, again)

    return run


def _states(outcomes: dict[str, dict[str, Any]]) -> list[str]:
    return [outcome["state"] for outcome in outcomes.values()]


def test_what_is_green_is_not_run_again(check: Check, tmp_path: Path) -> None:
    once = _shell("once", f"echo x >>{tmp_path}/ran")

    def runs() -> int:
        return len((tmp_path / "ran").read_text().split())

    assert _states(check(once)) == ["green"] and runs() == 1
    outcome = check(once)["once"]
    assert outcome["state"] == "green" and outcome["earlier"] and runs() == 1
    assert "earlier" not in check(once, digest="other sources")["once"] and runs() == 2
    assert "earlier" not in check(once, digest="other sources", again=True)["once"] and runs() == 3
    (tmp_path / "state.json").write_text('{"once": {"dig')  # cut off
    assert _states(check(once)) == ["green"] and runs() == 4


@pytest.mark.parametrize("text", ["exit 1", "kill -9 $$", "no-such-command"])
def test_what_is_red_runs_again(check: Check, text: str) -> None:
    assert _states(check(_shell("bad", text))) == ["red"]
    assert "earlier" not in check(_shell("bad", text))["bad"]
    assert _states(check(_shell("bad", "true"))) == ["green"]


def test_what_a_step_leaves_must_be_there(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    built = _shell("built", f"echo x >>{tmp_path}/a.so", leaves=("*.so",))
    check(built)
    assert check(built)["built"]["earlier"]
    (tmp_path / "a.so").unlink()
    assert "earlier" not in check(built)["built"]


def test_the_library_of_this_python_is_what_a_build_leaves() -> None:
    (build,) = gpu_check.chosen_steps("build")
    # The tests run with a library; what another Python left does not count.
    assert all(any(gpu_steps.ROOT.glob(pattern)) for pattern in build.leaves)
    assert sys.implementation.cache_tag in build.leaves[0]


def test_the_log_is_kept_and_its_end_shown(
    check: Check, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = check(_shell("bad", "seq 1000; echo words >&2; exit 4"))["bad"]
    assert outcome["reason"] == "sh: exit status 4, see bad.log"
    log = (tmp_path / "out" / "bad.log").read_text()
    assert log.startswith("$ sh -c") and "\n1\n" in log and log.endswith("words\n")
    shown = capfd.readouterr().out
    assert "\n1000\nwords" in shown and "\n1\n" not in shown


@pytest.mark.parametrize("seconds", [["60"], ["1.5", "60"]])  # commands share the limit
def test_a_step_over_its_limit_is_red_and_the_next_runs(check: Check, seconds: list[str]) -> None:
    slow = Step("slow", "a test", 1, 2, lambda place: [["sleep", each] for each in seconds])
    outcomes = check(slow, _shell("next", "true"))
    assert _states(outcomes) == ["red", "green"]
    assert outcomes["slow"]["reason"].startswith("killed after ")
    assert outcomes["slow"]["seconds"] < SOON


def test_a_step_that_the_budget_ends_is_not_red(check: Check) -> None:
    outcome = check(Step("long", "a test", 1, 60, lambda place: [["sleep", "60"]]), budget=1)
    assert outcome["long"]["state"] == "not run" and "--budget" in outcome["long"]["reason"]
    assert gpu_check.exit_status(outcome) == 3


def test_a_step_that_needs_another_is_not_run_without(check: Check) -> None:
    outcomes = check(_shell("build", "false"), _shell("tests", "true", needs="build"))
    assert outcomes["tests"]["reason"] == "build is red"
    assert _states(outcomes) == ["red", "not run"] and gpu_check.exit_status(outcomes) == 1
    outcomes = check(_shell("tests", "true", needs="build"))  # asked for alone
    assert _states(outcomes) == ["green"] and gpu_check.exit_status(outcomes) == 0


def test_without_a_device_only_what_needs_none_runs(check: Check) -> None:
    steps = (_shell("tests", "true"), _shell("build", "true", needs_device=False))
    outcomes = check(*steps, device="no CUDA driver")
    assert outcomes["tests"] == {"state": "not run", "reason": "no CUDA driver", "seconds": 0.0}
    assert outcomes["build"]["state"] == "green" and gpu_check.exit_status(outcomes) == 3


def test_the_budget_leaves_steps_for_the_next_time(check: Check) -> None:
    long = Step("long", "a test", 50, 60, lambda place: [["true"]])
    steps = (_shell("first", "sleep 0.2"), long)
    outcomes = check(*steps, budget=20)
    assert outcomes["long"]["state"] == "not run" and "of --budget" in outcomes["long"]["reason"]
    outcomes = check(*steps, budget=20)  # now it comes first, and is tried
    assert _states(outcomes) == ["green", "green"] and outcomes["first"]["earlier"]


def test_the_summary_names_every_step(check: Check, tmp_path: Path) -> None:
    check(_shell("build", "false"))
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["device"]["capability"] == "9.0" and found["versions"]["torch"] != "missing"
    assert found["steps"].keys() == {step.name for step in gpu_steps.STEPS}
    assert found["steps"]["build"]["state"] == "red"
    assert found["steps"]["tests"]["state"] == "not run"


def test_a_steps_output_is_apart_from_its_log(check: Check, tmp_path: Path) -> None:
    check(_shell("kernels", "echo record; echo noise >&2", output="records"))
    assert (tmp_path / "out" / "records").read_text() == "record\n"
    assert (tmp_path / "out" / "kernels.log").read_text().endswith("noise\n")


def test_steps_are_chosen_by_name() -> None:
    assert gpu_check.chosen_steps("") == list(gpu_steps.STEPS)
    assert [step.name for step in gpu_check.chosen_steps("tests,build")] == ["build", "tests"]
    with pytest.raises(SystemExit, match="no step 'test'; there are build"):
        gpu_check.chosen_steps("test")


def test_the_steps_stay_below_nine_minutes(tmp_path: Path) -> None:
    place = Place(tmp_path, GPU)
    for step in gpu_steps.STEPS:
        assert step.expected < step.limit < 540
        assert not step.needs or step.needs in [other.name for other in gpu_steps.STEPS]
        for command in step.commands(place):
            assert command and all(isinstance(word, str) for word in command)
            assert not command[1:2] or not command[1].endswith(".py") or _is_file(command[1])


def _is_file(name: str) -> bool:
    return (gpu_steps.ROOT / name).is_file()


def test_listing_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--out", str(tmp_path / "out"), "--state", str(tmp_path / "state.json")]
    assert gpu_check.main(["--list", *where]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [step.name for step in gpu_steps.STEPS]
    assert not any(tmp_path.iterdir())


def test_gloo_is_told_an_interface(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    found = gpu_steps.environment(Place(tmp_path, GPU))
    assert found["GLOO_SOCKET_IFNAME"] == "lo" and found["TORCH_CUDA_ARCH_LIST"] == "9.0"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert "GLOO_SOCKET_IFNAME" not in gpu_steps.environment(Place(tmp_path, GPU))


def _write_check(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write what a check leaves of a machine without GPUs, whose driver is old."""
    machine = {"reason": "", "driver": 12000, "runtime": 12010, "driver_version": "525.85"}
    found = {"devices": {"machine": {**machine, "gpus": [], "pairs": []}}, "rows": rows}
    path.write_text(json.dumps(found))


def _step(name: str) -> Step:
    (step,) = gpu_check.chosen_steps(name)
    return step


def _words(name: str, place: Place) -> str:
    (command,) = _step(name).commands(place)
    return " ".join(command)


def test_first_of_all_ranks_share_one_gpu_then_each_has_its_own() -> None:
    names = [step.name for step in gpu_steps.STEPS]
    first = ["first-handle", "first-descriptor", "first-pinned"]
    first += ["first-2-gpus", "first-4-gpus", "first-8-gpus"]
    assert names[:9] == ["build", "programs", *first, "killed"]
    assert [_step(name).devices for name in first] == [1, 1, 1, 2, 4, 8]
    assert all(_step(name).needs == "build" for name in [*first, "killed"])


def test_the_first_steps_load_eagerly_and_see_so_many_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    place = Place(tmp_path, GPU)
    for way in ("handle", "descriptor", "pinned"):
        words = _words(f"first-{way}", place)
        assert words.startswith("env CUDA_MODULE_LOADING=EAGER CUDA_VISIBLE_DEVICES=0 ")
        assert f" check --quiet --devices 2 --timeout 110 --paths {way} --json " in words
    words = _words("first-4-gpus", place)
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3 " in words and " --devices 4 " in words
    assert "--paths handle,descriptor,fabric,pinned " in words
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,4,2")
    assert "CUDA_VISIBLE_DEVICES=6 " in _words("first-handle", place)
    assert "CUDA_VISIBLE_DEVICES=6,4 " in _words("first-2-gpus", place)
    later = [step for step in gpu_steps.STEPS if not step.name.startswith("first-")]
    assert not any("EAGER" in word for step in later for w in step.commands(place) for word in w)


def test_measurements_have_a_rank_for_each_gpu(tmp_path: Path) -> None:
    for count, ranks in ((1, 2), (2, 2), (4, 4), (16, 8)):
        place = Place(tmp_path, Device("NVIDIA H200", "9.0", count, "13.0"))
        assert place.ranks == ranks
        assert f" --devices {ranks} " in _words("check", place) + _words("tune", place)
        assert f" --ranks {ranks} " in _words("bench", place)
    assert Place(tmp_path, gpu_check.SIMULATED, simulated=True).ranks == 2


def test_a_step_that_needs_more_gpus_is_skipped(check: Check) -> None:
    outcomes = check(_shell("two", "false", devices=2), _shell("one", "true"))
    assert outcomes["two"]["state"] == "skipped" and outcomes["one"]["state"] == "green"
    assert outcomes["two"]["reason"] == "needs 2 GPUs, and 1 is here"
    assert _states(check(_shell("two", "true", devices=2), device="no CUDA driver")) == ["not run"]


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (2, ["all_reduce of 1 MiB, 2 ranks: 40.0 us, predicted ", "of it; 8 x H100, NVSwitch)"]),
        (1, ["nothing is predicted for 1 x NVIDIA H100 80GB HBM3 that ranks share"]),
    ],
)
def test_what_was_measured_stands_beside_what_was_predicted(
    gpus: int, words: list[str], tmp_path: Path
) -> None:
    row = {"type": "row", "op": "all_reduce", "bytes": 1 << 20, "ranks": 2, "median_us": 40.0}
    rows = [{"type": "environment"}, {**row, "backend": "fastcomm"}, {**row, "backend": "nccl"}]
    (tmp_path / "bench.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    place = Place(tmp_path, Device("NVIDIA H100 80GB HBM3", "9.0", gpus, "13.0"))
    found = _step("bench").judge(place)
    assert (found.state, found.reason, len(found.lines)) == ("green", "2 rows", 1)
    assert all(word in found.lines[0] for word in words), found


def test_a_way_that_is_asked_for_alone_and_is_not_there_is_skipped(tmp_path: Path) -> None:
    row = {"path": "devices, handle", "check": "way", "operation": "", "verdict": "not used"}
    _write_check(tmp_path / "first-handle.json", [{**row, "why": "no IPC"}])
    found = _step("first-handle").judge(Place(tmp_path, GPU))
    assert (found.state, found.reason) == ("skipped", "devices, handle: no IPC")
    assert found.lines[0] == "driver 525.85, for CUDA 12.0; CUDA runtime 12.1"
    assert found.lines[-1].startswith(
        "warning: the driver is for CUDA 12.0, and fastcomm's kernels"
    )


def _junit(tmp_path: Path, *cases: str) -> Verdict:
    path = tmp_path / "junit.xml"
    text = "".join(f'<testcase classname="tests.gpu" name="t">{case}</testcase>' for case in cases)
    path.write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    return gpu_steps.verdict_of_tests(path)


def test_verdicts_of_tests(tmp_path: Path) -> None:
    skip, failure = '<skipped message="needs two GPUs"/>', "<failure/>"
    some = _junit(tmp_path, "", "", skip)
    assert (some.state, some.reason) == ("green", "2 passed, 1 skipped")
    assert "skipped 1: needs two GPUs" in some.lines
    assert _junit(tmp_path, skip, skip) == Verdict(
        "skipped", "needs two GPUs", ["2 skipped", "skipped 2: needs two GPUs"]
    )
    bad = _junit(tmp_path, "", failure, skip)
    assert bad.state == "red" and "failure: tests.gpu::t" in bad.reason
    assert _junit(tmp_path, "<error/>").state == "red"
    assert _junit(tmp_path).state == "red"


def test_pytest_with_failures_is_judged_by_what_it_left(check: Check, tmp_path: Path) -> None:
    test = tmp_path / "test_a.py"
    test.write_text("def test_a():\n    assert False\n\ndef test_b():\n    pass\n")
    results = tmp_path / "junit.xml"
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", f"--junitxml={results}"]
    step = Step(
        *("tests", "a test", 1, 60, lambda place: [[*command, str(test)]]),
        judge=lambda place: gpu_steps.verdict_of_tests(results),
    )
    outcome = check(step)["tests"]
    assert outcome["state"] == "red" and outcome["reason"].startswith("1 failed, 1 passed")


def test_the_benchmark_of_the_kernels_is_summed_up() -> None:
    row = {"type": "row", "kind": "bandwidth", "sources": 1, "dtype": "bytes", "spread": 0.01}
    row |= {"layout": "aligned", "segments": 1}
    records: list[dict[str, Any]] = [
        {"type": "environment", "kind": "cuda_kernels", "device": "a device"},
        {**row, "method": "memcpy", "bytes": 1 << 20, "gbps": 10.0, "share_of_copy": 1.0},
        {**row, "method": "multi_copy", "bytes": 16 << 20, "gbps": 3600.0, "share_of_copy": 0.9},
        {"type": "row", "kind": "launch", "method": "multi_copy", "segments": 64, "median_us": 3.5},
    ]
    ours, launch = gpu_steps.summary(records)
    assert "multi_copy of  1" in ours and "3600 GB/s,   90 % of a copy (1 % spread)" in ours
    assert "64 segments" in launch and "3.50 us" in launch


@pytest.mark.parametrize(
    ("output", "refusal"),
    [
        ("========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer", True),
        ("========= Target application terminated before first instrumented API call", True),
        (
            "========= Invalid __global__ read of size 4 bytes\n========= Device not supported",
            False,
        ),
        ("========= Uninitialized __global__ memory read of size 4 bytes", False),
        ("a.cpp:4: not true: x == y\n========= ERROR SUMMARY: 0 errors", False),
    ],
)
def test_a_sanitizer_that_cannot_work_is_told_from_one_that_finds(
    output: str, refusal: bool
) -> None:
    found = gpu.sanitizer_refusal(output)
    assert (found is not None) == refusal
    assert found is None or not found.startswith("=")


def test_only_thread_sanitizer_asks_for_a_fixed_layout(tmp_path: Path) -> None:
    place = programs.folder()
    assert programs.watched(place / "watched" / "x") and programs.watched(place / "watched_all/x")
    assert not any(programs.watched(place / name / "x") for name in ("plain", "bounds", "shim"))
    assert not programs.watched(tmp_path / "gpu" / "multi_copy")


@pytest.mark.parametrize(
    ("verdicts", "state"),
    [
        ({"memfd": "ok", "devices, handle": "ok", "devices, fabric": "not used"}, "green"),
        ({"memfd": "ok", "devices, handle": "not used"}, "red"),
        ({"memfd": "ok"}, "red"),
        ({"memfd": "wrong", "devices, handle": "ok"}, "red"),
    ],
)
def test_a_check_needs_a_way_between_devices(
    verdicts: dict[str, str], state: str, tmp_path: Path
) -> None:
    rows = [
        {"path": path, "check": "short", "operation": "reduce", "verdict": verdict, "why": "so"}
        for path, verdict in verdicts.items()
    ]
    _write_check(tmp_path / "check.json", rows)
    (step,) = [step for step in gpu_steps.STEPS if step.name == "check"]
    found = step.judge(Place(tmp_path, GPU))
    assert found.state == state and "memfd: " + verdicts["memfd"] in found.lines, found


_JUDGED = """
import dataclasses, sys
from pathlib import Path
import gpu_check, gpu_steps
from gpu_device import Device
out = Path(sys.argv[1])
place = gpu_steps.Place(out, Device("NVIDIA X", "9.0", 1, "13.0"))
(step,) = gpu_check.chosen_steps("check")
ends = dataclasses.replace(step, commands=lambda place: [["sh", "-c", "exit 1"]])
print(gpu_check.run_step(ends, place, 30)["reason"])
"""


def test_a_check_that_found_something_is_judged_in_the_program_itself(tmp_path: Path) -> None:
    """The program is a script: its own folder is on Python's path, but not the package."""
    row = {"path": "devices, handle", "check": "short", "operation": "reduce", "verdict": "wrong"}
    _write_check(tmp_path / "check.json", [{**row, "why": "rank 1: 3 wrong"}])
    command = [sys.executable, "-c", _JUDGED, str(tmp_path)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(gpu_steps.ROOT / "tools")}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "devices, handle, short, reduce: wrong, rank 1: 3 wrong" in ended.stdout, ended
    assert ended.stdout.splitlines()[-1] == "0 ways between devices are right"


def test_a_rehearsal_asks_for_simulated_devices_and_skips_what_they_cannot_run(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, gpu_check.SIMULATED, simulated=True)
    rehearsed = [step for step in gpu_steps.STEPS if step.rehearsed]
    names = ["killed", "tests", "package", "check", "bench", "tune", "fused", "primitives"]
    assert [step.name for step in rehearsed] == names
    for step in rehearsed:
        for command in step.commands(place):
            assert "cuda" not in command, command
            simulated = "--accelerator" in command or any("startup" in word for word in command)
            assert simulated, command
    others = [step for step in gpu_steps.STEPS if not step.rehearsed]
    state = gpu_check.State(tmp_path / "state.json", "digest")
    outcomes = gpu_check.check(others, place, state, float("inf"), again=False)
    assert {outcome["state"] for outcome in outcomes.values()} == {"skipped"}
    assert gpu_check.exit_status(outcomes) == 0
