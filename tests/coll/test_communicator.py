"""Communicators of ranks as threads, without torch: results to the bit, failures, data races.

The C++ programs check by themselves; here they are built with and without sanitizers. Builds with
one flag weakened must be reported by ThreadSanitizer, else its silence would mean nothing.
"""

from __future__ import annotations

import pytest
from support import cpp_build

RANDOM = "tests/cpp/communicator_test.cpp"
FAILURES = "tests/cpp/communicator_failures_test.cpp"
EVIDENCE = "tests/cpp/communicator_evidence_test.cpp"
# FC_SHIM gives the processor away at flag operations, so that one run sees many orders of events.
WATCHED = [*cpp_build.TSAN, "-DFC_SHIM"]
# Where flags are published and awaited: the negative controls compile only these anew.
FLAGS_AT = ["csrc/coll/operation.cpp", "csrc/coll/communicator.cpp"]
CASES = ["random", "wrap", "opposite", "threads", "release"]
FAILURE_CASES = [
    *("mismatch", "leave", "trouble_later", "late", "wait_timeout", "abort", "interrupt", "lost"),
    *("quarantine", "start_is_short", "relayed", "held_up"),
]

EVIDENCE_CASES = ["goodbye", "poison", "exit", "in_place"]


def build(source: str, flags: list[str]) -> cpp_build.Program:
    sources = [*cpp_build.native_sources(variants=False), source]
    return cpp_build.build(source.split("/")[-1].removesuffix(".cpp"), sources, flags)


@pytest.fixture(scope="module")
def plain() -> cpp_build.Program:
    return build(RANDOM, cpp_build.PLAIN)


@pytest.fixture(scope="module")
def watched() -> cpp_build.Program:
    return build(RANDOM, WATCHED)


@pytest.mark.parametrize("case", CASES)
def test_operations(plain: cpp_build.Program, case: str) -> None:
    cpp_build.check(plain, case, "1")


@pytest.mark.parametrize("case", FAILURE_CASES)
def test_failures(case: str) -> None:
    cpp_build.check(build(FAILURES, cpp_build.PLAIN), case, "1")


@pytest.mark.parametrize("case", EVIDENCE_CASES)
def test_evidence(case: str) -> None:
    cpp_build.check(build(EVIDENCE, cpp_build.PLAIN), case, "1")


@pytest.mark.parametrize("case", CASES)
def test_operations_without_race(watched: cpp_build.Program, case: str) -> None:
    output = cpp_build.check(watched, case, "2", environment={"FC_TEST_OPERATIONS": "30"})
    assert "ThreadSanitizer" not in output


@pytest.mark.parametrize("case", [case for case in FAILURE_CASES if case != "late"])
def test_failures_without_race(case: str) -> None:
    assert "ThreadSanitizer" not in cpp_build.check(build(FAILURES, WATCHED), case, "2")


@pytest.mark.parametrize("control", ["FC_WEAKEN_PUBLISH", "FC_WEAKEN_WAIT"])
def test_negative_control_is_reported(watched: cpp_build.Program, control: str) -> None:
    rest = [path for source, path in watched.objects.items() if source not in (*FLAGS_AT, RANDOM)]
    weak = cpp_build.build("weak", [*FLAGS_AT, RANDOM], [*WATCHED, f"-D{control}"], rest)
    reported = cpp_build.races(cpp_build.run(weak, "random", "1").stdout)
    assert reported, f"ThreadSanitizer missed {control}"


@pytest.mark.parametrize("case", ["random", "wrap", "threads"])
def test_operations_in_bounds(case: str) -> None:
    cpp_build.check(build(RANDOM, cpp_build.ASAN), case, "3")


@pytest.mark.parametrize("case", [case for case in FAILURE_CASES if case != "late"])
def test_failures_in_bounds(case: str) -> None:
    cpp_build.check(build(FAILURES, cpp_build.ASAN), case, "3")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_operations(plain: cpp_build.Program, seed: int) -> None:
    cpp_build.check(plain, "random", str(seed), environment={"FC_TEST_OPERATIONS": "400"})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 24))
def test_many_operations_without_race(watched: cpp_build.Program, seed: int) -> None:
    for case in CASES:
        assert "ThreadSanitizer" not in cpp_build.check(watched, case, str(seed))
