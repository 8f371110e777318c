"""The handshake against pseudo-random changes of what honest peers send, under sanitizers.

The same target that ``make fuzz`` runs under a coverage-guided fuzzer, which this needs not.
"""

from __future__ import annotations

import pytest
from support import cpp_build

FUZZ = ["tests/fuzz/handshake_fuzz.cpp", "tests/fuzz/replay.cpp"]
COUNT = "4000"


CONTROLS = {
    "csrc/transport/shm/handshake.cpp": "-DFC_DROP_HELLO_LENGTH",
    "csrc/transport/shm/record.cpp": "-DFC_DROP_RECORD_LENGTH",
}


@pytest.fixture(scope="module")
def target() -> cpp_build.Program:
    sources = [*cpp_build.native_sources(variants=False), *FUZZ]
    return cpp_build.build("handshake_fuzz", sources, cpp_build.ASAN)


@pytest.mark.parametrize("seed", ["20261121", "20261122"])
def test_no_message_does_harm(target: cpp_build.Program, seed: str) -> None:
    print(f"seed {seed}")
    assert f"{COUNT} inputs" in cpp_build.check(target, "mutate", seed, COUNT)


@pytest.mark.parametrize("source", CONTROLS)
def test_negative_control_is_reported(target: cpp_build.Program, source: str) -> None:
    """One check of a length left out: the fuzzer must see it, else its silence means nothing."""
    others = [path for name, path in target.objects.items() if name != source]
    control = cpp_build.build(
        "handshake_fuzz_control", [source], [*cpp_build.ASAN, CONTROLS[source]], others
    )
    result = cpp_build.run(control, "mutate", "20261121", COUNT)
    assert result.returncode != 0, result.stdout
    assert "FUZZ: " in result.stdout or "ERROR: AddressSanitizer" in result.stdout, result.stdout
