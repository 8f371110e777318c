"""fused_all_reduce of ranks as threads, without torch: every byte, norms, data races."""

from __future__ import annotations

import pytest
from support import cpp_build

TEST = "tests/cpp/fused_test.cpp"
SEEN = "csrc/coll/operation.cpp"  # what the negative controls compile anew: it has the schedules
WATCHED = [*cpp_build.TSAN, "-DFC_SHIM"]


def build(flags: list[str]) -> cpp_build.Program:
    sources = [*cpp_build.native_sources(variants=False), TEST]
    return cpp_build.build("fused_test", sources, flags)


@pytest.fixture(scope="module")
def watched() -> cpp_build.Program:
    return build(WATCHED)


@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_byte(seed: str) -> None:
    cpp_build.check(build(cpp_build.PLAIN), "all", seed)


def test_in_bounds() -> None:
    cpp_build.check(build(cpp_build.ASAN), "all", "3")


def test_without_race(watched: cpp_build.Program) -> None:
    assert "ThreadSanitizer" not in cpp_build.check(watched, "random", "4")


@pytest.mark.parametrize("control", ["FC_WEAKEN_PUBLISH", "FC_WEAKEN_WAIT"])
def test_negative_control_is_reported(watched: cpp_build.Program, control: str) -> None:
    rest = [path for source, path in watched.objects.items() if source not in (SEEN, TEST)]
    weak = cpp_build.build("weak", [SEEN, TEST], [*WATCHED, f"-D{control}"], rest)
    output = cpp_build.run(weak, "race", "5").stdout
    assert cpp_build.races(output)
    for schedule in ("FusedAllReduce", "FusedDirect", "GatherShards"):
        assert schedule in output, schedule
