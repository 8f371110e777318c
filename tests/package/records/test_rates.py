"""Calls and bytes a second."""

from __future__ import annotations

import pytest
from package.records.test_jobs import NOW, done, group, inside, rank

from fastcomm._records.rates import rate


def test_what_has_ended_lately_counts() -> None:
    calls = [done(0, 9.0), done(1, 4.0), done(2, 3.0), inside(3, 1.0)]
    snapshot = rank(calls, [group(0, 2)]).snapshot
    pace = rate(snapshot, NOW, 5.0, last=512)
    assert pace.calls == pytest.approx(2 / 5)
    assert pace.bytes == pytest.approx(2 * 4096 / 5)
    (token,) = {call.group.token for call in snapshot.calls if call.group is not None}
    assert rate(snapshot, NOW, 5.0, 512, token) == pace
    assert rate(snapshot, NOW, 5.0, 512, "another").calls == 0


def test_where_records_do_not_reach_back_so_far_the_time_is_shorter() -> None:
    snapshot = rank([done(n, 2.0 - n / 100) for n in range(100)], [group(0, 2)]).snapshot
    assert rate(snapshot, NOW, 5.0, last=50).calls == pytest.approx(50 / 1.5, rel=1e-3)
    assert rate(snapshot, NOW, 5.0, last=512).calls == pytest.approx(100 / 5)
