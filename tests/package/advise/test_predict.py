"""Predictions from records with known times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import advised as made

from fastcomm._advise import predict
from fastcomm._advise.replay import Speeds
from fastcomm._advise.told import Pass

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
    def ranks(*ready: tuple[float, float]) -> list[Pass]:
        return [Pass(0.0, ((8, first), (8, last))) for first, last in ready]

    replayed = predict.replayed(ranks((2.0, 10.0), (5.0, 9.0)), lambda _: 1.0, Speeds())
    # The first one goes on from 5 to 6, beside the computation, the last one after its end.
    assert replayed.end == pytest.approx(11.0)
    assert replayed.exposed == pytest.approx(1.0) and replayed.busy == pytest.approx(2.0)
    late = predict.replayed(ranks((2.0, 10.0), (9.5, 9.9)), lambda _: 1.0, Speeds())
    assert late.end == pytest.approx(11.5)


def test_passes_that_do_not_send() -> None:
    """Two passes of 10 ms a step, and a message of 4 ms in each, or in the last one."""
    recorded = made.ranks(0.01, cost=0.004)
    recorded.facts = replace(recorded.facts, passes=2)
    recorded.rounds["quiet"] = [
        [replace(each, steps=made.steps(0.02, 2)) for each in ranks]
        for ranks in recorded.rounds["quiet"]
    ]
    ddp = predict.of_ddp(recorded)
    assert ddp.seconds == pytest.approx(0.028) and ddp.rows == 2 * 128
    found = {
        each.way: each for each in predict.settings(recorded, ddp, predict.of_one(made.one(1)))
    }
    assert found["DDP, no_sync but in the last pass"].seconds == pytest.approx(0.024)
    assert not any("batches a step" in way for way in found)


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
    assert not any("bucket_cap_mb" in way for way in found)  # one gradient is one bucket
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


def test_buckets_of_other_sizes() -> None:
    recorded = made.ranks(0.02, cost=0.004)
    halves = [(2 * MIB, 0.5), (2 * MIB, 1.0)]
    recorded.facts = made.facts(gradients=halves)
    found = predict.settings(recorded, predict.of_ddp(recorded), predict.of_one(made.one(0.03)))
    names = [each.way for each in found if "bucket_cap_mb" in each.way]
    assert names == []  # the first one holds 1 MiB, so each half is a bucket of every size
    recorded.speeds = [Speeds(1.0, 1.0)]
    # Six of half a MiB: buckets of 1 and 2 MiB, or three of 1 MiB, whose last one is shorter.
    recorded.facts = made.facts(gradients=[(MIB // 2, (1 + place) / 6) for place in range(6)])
    ddp = predict.of_ddp(recorded)
    found = predict.settings(recorded, ddp, predict.of_one(made.one(0.03)))
    (one,) = [each for each in found if "bucket_cap_mb" in each.way]
    assert one.way == "DDP, bucket_cap_mb=1"
    assert one.seconds == pytest.approx(ddp.seconds - 0.001)  # of the last MiB


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
