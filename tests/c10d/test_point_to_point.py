"""send and recv over shared memory: right values in any order, and the errors of every operation."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.ranks import World, run_outcomes, run_ranks

pytestmark = pytest.mark.serial  # short times are compared

MANY = 1 << 22  # far more than a ring holds

def _exchange(world: World) -> None:
    world.init()
    rank, size = world.rank, world.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 1 << 18):
        got = torch.full((count,), -1.0)
        works = [dist.isend(torch.full((count,), float(rank)), after, tag=3)]
        works.append(dist.irecv(got, before, tag=3))
        for work in works:
            assert work is not None
            work.wait()
            assert work.is_completed() and work.is_success()
            work.wait()  # again
        assert got.tolist() == [float(before)] * count
    if rank == 0:
        seen = []
        for _ in range(size - 1):
            x = torch.zeros(1)
            source = dist.recv(x)  # from any rank
            assert x.item() == source
            seen.append(source)
        assert sorted(seen) == list(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()  # else a rank's next message could be taken from any rank's
    x, y = torch.ones(2) * rank, torch.zeros(2)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
    ):
        work.wait()
    assert y.tolist() == [before] * 2
    objects: list[Any] = [{"from": rank}] if rank == 0 else [None]
    if rank == 0:
        dist.send_object_list(objects, dst=1)
    elif rank == 1:
        dist.recv_object_list(objects, src=0)
        assert objects == [{"from": 0}]
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_values(size: int) -> None:
    run_ranks(size, _exchange)


def _pattern(count: int, seed: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) * 0.5 + seed


def _in_any_order(world: World) -> None:
    """Every pair exchanges short and long messages; each rank posts its own in its own order."""
    world.init()
    rank, size = world.rank, world.size
    chance = random.Random(rank)
    for round_number in range(10):
        operations, checks = [], []
        for peer in range(size):
            if peer == rank:
                continue
            for tag, count in enumerate((1, 500, 30_000, 0)):
                seed = 100 * round_number + tag
                got = torch.zeros(count)
                sent = _pattern(count, seed + 10_000 * rank)
                operations.append(dist.P2POp(dist.isend, sent, peer, tag=tag))
                operations.append(dist.P2POp(dist.irecv, got, peer, tag=tag))
                checks.append((got, _pattern(count, seed + 10_000 * peer)))
        chance.shuffle(operations)
        works = dist.batch_isend_irecv(operations)
        chance.shuffle(works)
        for work in works:
            work.wait()
            assert work.is_completed() and work.is_success()
        for got, wanted in checks:
            assert torch.equal(got, wanted)
    dist.barrier()


@pytest.mark.parametrize("size", [3, 4])
def test_batches_in_any_order(size: int) -> None:
    run_ranks(size, _in_any_order)


def _many_at_once(world: World) -> None:
    """Nothing is received before all is sent, and then from the last tag to the first."""
    world.init()
    count = 300
    sizes = [100_000 if tag % 60 == 0 else 10 for tag in range(count)]
    if world.rank == 0:
        works = [dist.isend(_pattern(sizes[tag], tag), 1, tag=tag) for tag in range(count)]
        assert works[1].is_completed() and not works[0].is_completed()
        for work in works:
            work.wait()
    else:
        time.sleep(0.2)
        for tag in reversed(range(count)):
            got = torch.zeros(sizes[tag])
            dist.recv(got, 0, tag=tag)
            assert torch.equal(got, _pattern(sizes[tag], tag)), tag
    dist.barrier()


def test_hundreds_of_sends_before_a_receive() -> None:
    run_ranks(2, _many_at_once)


def _many_senders(world: World) -> None:
    world.init()
    count = 200
    if world.rank != 0:
        for i in range(count):
            size = 20_000 if i % 20 == 0 else 4
            dist.send(torch.full((size,), float(1000 * world.rank + i)), 0, tag=int(size > 4))
        return dist.barrier()
    seen: dict[int, list[int]] = {rank: [] for rank in range(1, world.size)}
    for i in range(count * (world.size - 1)):
        long = i % 20 == 0
        got = torch.zeros(20_000 if long else 4)
        source = dist.recv(got, tag=int(long))
        assert got.unique().numel() == 1 and int(got[0]) // 1000 == source
        seen[source].append(int(got[0]) % 1000)
    for numbers in seen.values():
        assert sorted(numbers) == list(range(count))
        for long in (False, True):  # of one tag, in the order of sending
            own = [number for number in numbers if (number % 20 == 0) == long]
            assert own == sorted(own)
    dist.barrier()


def test_receives_from_any_rank() -> None:
    run_ranks(4, _many_senders)


def _with_others(world: World) -> None:
    """Several threads exchange while the main thread runs collectives."""
    world.init()
    peer = 1 - world.rank
    failures = []

    def exchange(tag: int) -> None:
        try:
            for i in range(60):
                count = (3, 600, 40_000)[i % 3]
                got = torch.zeros(count)
                work = dist.isend(_pattern(count, i + 7 * world.rank), peer, tag=tag)
                dist.recv(got, peer, tag=tag)
                work.wait()
                assert torch.equal(got, _pattern(count, i + 7 * peer))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(3)]
    for thread in threads:
        thread.start()
    for i in range(60):
        sums = torch.ones(5 if i % 2 else 200_000)
        dist.all_reduce(sums, async_op=True).wait()
        assert sums[-1] == 2
    for thread in threads:
        thread.join()
    assert not failures, failures
    dist.barrier()


def test_threads_and_collectives() -> None:
    run_ranks(2, _with_others)


def _kinds_of_tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    return {
        "transposed": base.t(),
        "strided": base[:, ::2],
        "complex": torch.complex(base, -base),
        "strided complex": torch.complex(base, -base)[::2],
        "scalar": torch.tensor(4.5),
        "empty": torch.zeros(0, 3),
        "bool": base % 2 == 0,
        **{
            str(dtype): base.to(dtype)
            for dtype in (
                *(torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn),
                *(torch.float8_e5m2, torch.int8, torch.uint8, torch.int16, torch.int64),
            )
        },
        "long strided": torch.arange(200_000, dtype=torch.float32).reshape(2, -1).t(),
    }


def _kinds(world: World) -> None:
    world.init()
    for tag, (name, tensor) in enumerate(_kinds_of_tensors().items()):
        if world.rank == 0:
            dist.send(tensor, 1, tag=tag)
            continue
        got = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        dist.recv(got, 0, tag=tag)
        same = got.view(torch.uint8) if "float8" in name else got
        wanted = tensor.view(torch.uint8) if "float8" in name else tensor
        assert torch.equal(same, wanted), name
    dist.barrier()


def test_kinds_of_tensors() -> None:
    run_ranks(2, _kinds)


def _futures(world: World) -> list[Any]:
    world.init()
    seen: list[Any] = []
    if world.rank == 0:
        time.sleep(0.2)
        dist.send(torch.full((3,), 7.0), 1)
        dist.send(torch.full((50_000,), 8.0), 1)
    else:
        for count in (3, 50_000):
            got = torch.zeros(count)
            work = dist.irecv(got, 0)
            assert work is not None
            future = work.get_future()
            done = future.then(lambda f: seen.append((f.value()[0] is not None, len(f.value()))))
            done.wait()  # nobody waits for the work itself
            assert work.is_completed() and got[-1] in (7, 8)
            assert work.get_future().wait()[0].data_ptr() == got.data_ptr()
    dist.barrier()
    return seen


def test_futures() -> None:
    assert run_ranks(2, _futures)[1] == [(True, 1)] * 2


def _polled(world: World) -> None:
    """Who only asks whether it is complete sees it complete."""
    world.init()
    if world.rank == 0:
        dist.send(torch.ones(2), 1)
        dist.recv(torch.zeros(1), 1)
    else:
        got = torch.zeros(2)
        work = dist.irecv(got, 0)
        assert work is not None
        deadline = time.monotonic() + 20
        while not work.is_completed():
            assert time.monotonic() < deadline
        assert got.tolist() == [1, 1]
        dist.send(torch.zeros(1), 0)
    dist.barrier()


def test_polling_completes() -> None:
    run_ranks(2, _polled)


MISMATCHES = {
    "shorter": lambda: torch.zeros(3),
    "longer": lambda: torch.zeros(5),
    "dtype": lambda: torch.zeros(4, dtype=torch.int32),
    "long": lambda: torch.zeros(100_000),
}


def _unlike(world: World, how: str, waits: bool) -> tuple[list[Caught], list[float]]:
    world.init()
    dist.barrier()
    got = torch.full((4,), 9.0)
    if world.rank == 0:
        return [catch(dist.recv, got, 1), catch(dist.barrier)], got.tolist()
    if world.rank == 2:  # in another exchange
        return [catch(dist.recv, got, 0), catch(dist.barrier)], got.tolist()
    caught = []
    if how == "long":
        caught.append(catch(dist.send, MISMATCHES[how](), 0))
    else:
        dist.send(MISMATCHES[how](), 0)
    if waits:
        time.sleep(0.3)
    caught.append(catch(dist.recv, got, 0))
    caught.append(catch(dist.send, got, 0))
    return caught, got.tolist()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("how", MISMATCHES)
def test_unlike_calls_are_a_mismatch_everywhere(how: str, waits: bool) -> None:
    outcomes = run_ranks(3, _unlike, how, waits)
    for caught, memory in outcomes:
        assert {error.kind for error in caught} == {"CollectiveMismatchError"}, caught
        assert memory == [9] * 4
        assert all(error.seconds < 2 for error in caught)
    first = outcomes[0][0][0]
    assert (first.operation, first.peer) == ("recv", 1)
    sent = MISMATCHES[how]()
    name = str(sent.dtype).removeprefix("torch.")
    assert "rank 0 called recv(float32, 4 elements) from rank 1, tag 0" in first.text
    assert f"rank 1 called send({name}, {sent.numel()} elements) to rank 0" in first.text
    assert f"send({name}, {sent.numel()} elements)" in outcomes[1][0][0].text


def _tags_of_nobody(world: World) -> Caught | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        for tag in (3, 7):
            dist.send(torch.ones(1), 0, tag=tag)
        time.sleep(1)
        return catch(dist.barrier)
    return catch(dist.recv, torch.zeros(1), 1, tag=4)


def test_a_timeout_lists_what_nobody_received() -> None:
    caught, other = run_ranks(2, _tags_of_nobody, group_timeout=0.4)
    assert caught.kind == other.kind == "CollectiveTimeoutError"
    assert "has sent tags [3, 7] that nobody received" in caught.text, caught.text


def _groups_again(world: World) -> None:
    """Windows are used again: a new group begins with empty rings."""
    world.init()
    for number in range(6):
        group = dist.new_group()
        peer = 1 - world.rank
        works = [dist.isend(torch.full((n,), float(number)), peer, group) for n in (2, 20_000)]
        for n in (2, 20_000):
            got = torch.zeros(n)
            dist.recv(got, peer, group)
            assert got[-1] == number
        for work in works:
            work.wait()
        if number % 2:  # left unread
            dist.isend(torch.full((2,), -1.0), peer, group, tag=9)
        dist.barrier()
        dist.destroy_process_group(group)


def test_groups_one_after_the_other() -> None:
    run_ranks(2, _groups_again)


def _die(after: float, hold: bool) -> None:
    if hold and os.fork() == 0:  # a child holds every socket of this process
        time.sleep(4)
        os._exit(0)
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


WAITS = {
    "recv": lambda peer: dist.recv(torch.zeros(4), peer),
    "recv from any": lambda peer: dist.recv(torch.zeros(4)),
    "send": lambda peer: dist.send(torch.zeros(MANY), peer),
    "irecv": lambda peer: dist.irecv(torch.zeros(4), peer).wait(),
}


def _lose_one(world: World, how: str, hold: bool) -> tuple[list[Caught], float]:
    """Rank 0 exchanges with rank 1, which dies; rank 2 with rank 0, which is busy."""
    world.init()
    dist.barrier()
    died = time.monotonic() + 0.3
    if world.rank == 1:
        _die(0.3, hold)
    first = catch(WAITS[how], 1 if world.rank == 0 else 0)
    later = [catch(dist.send, torch.zeros(1), 2 - world.rank), catch(dist.barrier)]
    return [first, *later], first.at - died


@pytest.mark.parametrize("hold", [False, True], ids=["", "forked holder"])
@pytest.mark.parametrize("how", WAITS)
def test_who_waits_learns_of_a_death(how: str, hold: bool) -> None:
    outcomes = run_outcomes(3, _lose_one, how, hold, timeout=30)
    assert outcomes[1].exitcode == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        caught, delay = outcome.value
        assert [(error.kind, error.peer) for error in caught] == [("PeerLostError", 1)] * 3, caught
        assert caught[0].operation in how and caught[0].world_size == 3
        assert delay < 1.5, delay
        assert all(error.seconds < 0.1 for error in caught[1:])


def _one_is_late(world: World) -> list[Caught] | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        time.sleep(1.2)
        return [catch(dist.barrier)]
    return [catch(dist.recv, torch.zeros(4), 1), catch(dist.barrier)]


def test_a_timeout_names_the_peer_and_ends_the_group() -> None:
    caught, [other] = run_ranks(2, _one_is_late, group_timeout=0.5)
    assert caught[0].kind == caught[1].kind == other.kind == "CollectiveTimeoutError"
    assert (caught[0].peer, caught[0].operation) == (1, "recv")
    assert "recv(float32, 4 elements) from rank 1, tag 0" in caught[0].text
    assert 0.5 <= caught[0].seconds < 0.6


def _wait_twice(world: World) -> Caught | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        time.sleep(0.5)
        dist.send(torch.ones(4), 0)
        dist.barrier()
        return None
    x = torch.zeros(4)
    work = dist.irecv(x, 1)
    assert work is not None
    caught = catch(work.wait, timedelta(milliseconds=100))
    work.wait()
    assert x.tolist() == [1] * 4
    dist.barrier()
    return caught


def test_a_wait_that_expires_harms_nothing() -> None:
    caught = run_ranks(2, _wait_twice)[0]
    assert caught.kind == "CollectiveTimeoutError"
    assert "the operation goes on" in caught.text
    assert 0.1 <= caught.seconds < 0.2


def _one_leaves(world: World) -> tuple[list[float], Caught] | None:
    """What was sent before arrives; nothing else does."""
    world.init()
    dist.barrier()
    if world.rank == 1:
        dist.send(torch.ones(2), 0)
        dist.destroy_process_group()
        time.sleep(1)
        return None
    time.sleep(0.3)
    x = torch.zeros(2)
    dist.recv(x, 1)
    return x.tolist(), catch(dist.recv, x, 1)


def test_a_peer_that_left() -> None:
    (values, caught) = run_ranks(2, _one_leaves)[0]
    assert values == [1, 1]
    assert (caught.kind, caught.peer) == ("PeerLeftError", 1), caught


def _interrupt(world: World) -> list[Caught]:
    world.init()
    dist.barrier()
    if world.rank == 1:
        time.sleep(0.6)
        return [catch(dist.recv, torch.zeros(1), 0), catch(dist.barrier)]
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    work = dist.irecv(torch.zeros(1), 1)
    assert work is not None
    return [catch(work.wait), catch(work.wait), catch(dist.barrier)]


def test_ctrl_c() -> None:
    own, peers = run_ranks(2, _interrupt)
    assert [error.kind for error in own] == ["KeyboardInterrupt", *["GroupPoisonedError"] * 2]
    assert 0.25 < own[0].seconds < 0.5
    for error in peers:
        assert (error.kind, error.peer) == ("GroupPoisonedError", 0)
        assert "was interrupted in recv(float32, 1 elements) from rank 1" in error.text


def _bad_arguments(world: World) -> list[Caught]:
    """They are the caller's alone: the group stays as it is."""
    world.init()
    caught = []
    if world.rank == 0:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        caught = [
            catch(backend.send, [torch.zeros(1)], 1, -1),
            catch(backend.send, [torch.zeros(1)], 7, 0),
            catch(backend.recv, [torch.zeros(1)], 0, 0),
            catch(backend.recv, [torch.zeros(1), torch.zeros(1)], 1, 0),
        ]
    dist.barrier()
    return caught


def test_bad_arguments_harm_nothing() -> None:
    caught = run_ranks(2, _bad_arguments)[0]
    assert [error.kind for error in caught] == ["CollectiveArgumentError"] * 4
