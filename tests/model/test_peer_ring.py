"""The rings of sends and receives, checked over all their states."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import spin

MODEL = "peer_ring.pml"
RUNS = {
    "all at once": "",
    "in turn": "-DIN_TURN",
    "all long": "-DLONGS=15 -DMESSAGES=4 -DPIECES=2",
    "none long": "-DLONGS=0",
    "wrapping": "-DLONGS=5 -DFIRST=6 -DMODULUS=8",
}
STUCK = "invalid end state"
# What is left out, and a word of the condition that must break.
CONTROLS = {
    "stamp_first": ("-DSTAMP_FIRST", "number"),
    "taken_first": ("-DTAKEN_FIRST", "number"),
    "filled_first": ("-DFILLED_FIRST", "piece"),
    "drained_first": ("-DDRAINED_FIRST", "piece"),
    "blind_post": ("-DBLIND_POST", STUCK),
    "blind_fill": ("-DBLIND_FILL", "piece"),
    "blind_grant": ("-DBLIND_GRANT -DLONGS=15", STUCK),
    "bare_grants": ("-DBARE_GRANTS -DLONGS=15", "piece"),
    "no_strays": ("-DNO_STRAYS -DIN_TURN", STUCK),
}


@pytest.mark.parametrize("run", RUNS)
def test_every_message_arrives(run: str, tmp_path: Path) -> None:
    spin.need_spin()
    result = spin.search(MODEL, RUNS[run], tmp_path, large=True)
    print(f"{run}: {result.summary()}")
    assert result.errors == 0, f"{result.error}\n{result.trail}"
    assert result.complete, result.output
    if run == "all at once":  # what is never run checks nothing
        assert not result.unreached


@pytest.mark.parametrize("control", CONTROLS)
def test_negative_control_is_reported(control: str, tmp_path: Path) -> None:
    spin.need_spin()
    macros, broken = CONTROLS[control]
    result = spin.search(MODEL, macros, tmp_path)
    print(f"{control}: {result.summary()}")
    assert result.errors > 0, f"spin missed {macros}"
    assert broken in result.error, f"{result.error}\n{result.trail}"
