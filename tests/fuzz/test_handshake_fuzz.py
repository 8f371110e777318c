"""The handshake against pseudo-random changes of what honest peers send, under sanitizers.

The same target that ``make fuzz`` runs under a coverage-guided fuzzer, which this does not need.
"""

from __future__ import annotations

import pytest
from support import programs

COUNT = "4000"


@pytest.mark.parametrize("seed", ["20261121", "20261122"])
def test_no_message_does_harm(seed: str) -> None:
    print(f"seed {seed}")
    target = programs.get("handshake_fuzz", programs.BOUNDS)
    assert f"{COUNT} inputs" in programs.check(target, "mutate", seed, COUNT)


@pytest.mark.parametrize("control", ["forget_hello_length", "forget_record_length"])
def test_negative_control_is_reported(control: str) -> None:
    """One length check is left out: the fuzzer must see it, else its silence means nothing."""
    target = programs.get("handshake_fuzz", programs.BOUNDS)
    result = programs.run(target, "mutate", "20261121", COUNT, control=control)
    assert result.returncode != 0, result.stdout
    assert "FUZZ: " in result.stdout or "ERROR: AddressSanitizer" in result.stdout, result.stdout
