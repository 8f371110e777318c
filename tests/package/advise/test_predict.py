"""Predictions from records with known times."""

from __future__ import annotations

import pytest
from support import advised as made

from fastcomm._advise import predict
from fastcomm._advise.replay import Replayed, Speeds
from fastcomm._advise.told import Pass, Round

MIB = made.MIB


def test_one_process() -> None:
    one = predict.of_one(made.one(0.02))
    assert one.seconds == one.measured == pytest.approx(0.02)
    assert one.rows_per_second == pytest.approx(64 / 0.02)
    assert one.parts == pytest.approx(
        {"loading": 0.0, "forward": 0.005, "backward": 0.01, "optimizer": 0.005}
    )
    assert one.memory_bytes == 4 * MIB * 4 + 64_000


def test_ranks_whose_one_message_nothing_hides() -> None:
    ddp = predict.of_ddp(made.ranks(0.02, cost=0.004, measured=0.025))
    assert ddp.seconds == pytest.approx(0.024)
    assert ddp.rows == 128 and ddp.share == 64 and ddp.sent_bytes == 4 * MIB
    assert ddp.parts["communication"] == pytest.approx(0.004)
    assert ddp.measured == pytest.approx(0.025) and ddp.spread == 0.0
    assert ddp.error == pytest.approx(-0.04)
    assert ddp.memory_bytes == 4 * MIB * 5 + 64_000  # with buckets


def test_a_bucket_is_sent_once_the_last_rank_has_it() -> None:
    def round_of(first: float, last: float) -> Round:
        return Round(made.steps(10.0, 1), (Pass(0.0, ((8, first), (8, last))),))

    def replays(*ranks: Round) -> list[Replayed]:
        return list(predict.replays(ranks, lambda _: 1.0, Speeds()))

    replayed = replays(round_of(2.0, 10.0), round_of(5.0, 9.0))
    assert [each.end for each in replayed] == [pytest.approx(11.0)]
    # The first one goes on from 5 to 6, beside the computation, the last one after its end.
    assert replayed[0].exposed == pytest.approx(1.0) and replayed[0].busy == pytest.approx(2.0)
    late = replays(round_of(2.0, 10.0), round_of(9.5, 9.9))
    assert late[0].end == pytest.approx(11.5)


def test_data_parallel() -> None:
    found = predict.of_slots(made.slots(0.03, moved=0.002))
    assert found.seconds == pytest.approx(0.032) and found.rows == 64 and found.share == 32
    assert found.measured is None and found.error is None


def test_settings() -> None:
    recorded = made.ranks(0.02, cost=0.004)
    ddp = predict.of_ddp(recorded)
    one = predict.of_one(made.one(0.03))
    found = {each.way: each for each in predict.settings(recorded, ddp, one)}
    assert found["DDP, 16 bits on the wire"].seconds == pytest.approx(0.022)
    assert found["DDP, 16 bits on the wire"].sent_bytes == 2 * MIB
    for megabytes in (1, 5, 100):  # one gradient is one bucket
        assert found[f"DDP, bucket_cap_mb={megabytes}"].seconds == pytest.approx(ddp.seconds)
    views = found["DDP, gradient_as_bucket_view"]
    assert views.seconds == pytest.approx(ddp.seconds)
    assert views.memory_bytes == ddp.memory_bytes - 4 * MIB
    # Half of the optimizer's 5 ms are saved, and half of its state.
    sharded = found["ShardedOptimizer"]
    assert sharded.seconds == pytest.approx(0.02 + 0.004 - 0.0025)
    assert sharded.memory_bytes == views.memory_bytes - 4 * MIB
    # A further batch costs forward and backward passes: all but the optimizer.
    four = found["DDP, 4 batches a step"]
    assert four.seconds == pytest.approx(0.024 + 3 * 0.015) and four.rows == 4 * 128
    assert four.against == pytest.approx(4 * 64 / (4 * 0.03 - 3 * 0.0075))


def test_buckets_end_with_the_gradient_that_fills_them() -> None:
    gradients = [(MIB // 2, 0.1), (MIB, 0.2), (3 * MIB, 0.5), (3 * MIB, 0.7), (8, 1.0)]
    assert predict.buckets(gradients, 5 * MIB) == [
        (MIB * 3 // 2, 0.2),
        (6 * MIB, 0.7),
        (8, 1.0),
    ]
    assert predict.buckets(gradients, MIB // 4) == [*gradients[:4], (8, 1.0)]
    assert predict.buckets([], MIB) == []


def test_hosts_pay_for_the_link_or_for_the_bytes() -> None:
    recorded = made.ranks(0.02, cost=0.004)
    ddp = predict.of_ddp(recorded)
    slow = predict.of_hosts(recorded, ddp, 2, 1.0)
    messages = predict.HOST_CALL_S + 2 * predict.HOST_MESSAGE_S
    assert slow.seconds == pytest.approx(ddp.seconds + messages + predict.LINK_USE * 4 * MIB * 8e-9)
    assert slow.hosts == 2 and slow.rows == 256 and slow.measured is None
    fast = predict.of_hosts(recorded, ddp, 2, 1000.0)
    assert fast.seconds == pytest.approx(
        ddp.seconds + messages + predict.LINK_USE * 4 * MIB * predict.HOST_BYTE_S
    )


def test_spread_compares_halves() -> None:
    assert predict.spread([1.0]) is None
    assert predict.spread([1.0, 1.0, 1.0, 1.0]) == 0.0
    assert predict.spread([1.0, 1.2, 1.0, 1.2]) == pytest.approx(0.2 / 1.1)
