"""Tensors on a device go to a backend made for it, here a test backend in NCCL's place."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support import ranks
from support.caught import Caught, catch
from support.direct import check_bits, train_ddp_on_both, wait_that_expires
from support.patience import OPERATION, SOON
from support.ranks import World

import fastcomm
from fastcomm._distributed import device_engines as _device_engines
from fastcomm._distributed.device_engines import Factory

pytestmark = [pytest.mark.serial, pytest.mark.usefixtures("simulated")]  # short times are compared

ELSEWHERE = {"FASTCOMM_ROUTE": "nccl"}  # not to our kernels
run_ranks = functools.partial(ranks.run_ranks, environment=ELSEWHERE)
run_outcomes = functools.partial(ranks.run_outcomes, environment=ELSEWHERE)

_made: list[Any] = []
_said: list[str] = []


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    _made.append(sim.SimBackend(store, rank, size, timedelta(seconds=3600)))
    return _made[-1]


def _init(world: World, *, device: int | None = None, known: bool = True) -> torch.device:
    """Form the group; the rank has its own device unless one is given."""
    sim.load()
    if known:
        _device_engines.register("sim", Factory("simccl", _make, str))
    handler = logging.Handler()
    handler.emit = lambda record: _said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fastcomm").addHandler(handler)
    mine = torch.device("sim", world.rank if device is None else device)
    torch.sim.set_device(mine)
    world.init("cpu:fastcomm,sim:fastcomm")
    return mine


def _started(world: World) -> torch.Tensor:
    """Return a tensor on this rank's device, after an operation of the backend."""
    x = torch.ones(4, device=_init(world))
    dist.all_reduce(x)
    return x


def _each(world: World, device: torch.device) -> None:
    """Run every operation on the device, and one on the host beside them."""
    check_bits(world, device, torch.int32, 5)  # sums may have any order
    host = torch.full((2,), float(world.rank))
    dist.all_reduce(host)
    assert host.tolist() == [sum(range(world.size))] * 2
    dist.barrier()


def _on_the_backend(world: World) -> dict[str, int]:
    device = _init(world)
    x = torch.ones(3, device=device)
    undecided = fastcomm.explain("all_reduce", x)
    assert undecided.native and "unless the first collective finds that simccl" in str(undecided)
    _each(world, device)
    decided = fastcomm.explain("all_reduce", x)
    assert not decided.native and decided.algorithm == "simccl"
    assert not fastcomm.explain("gossip", x).native
    assert fastcomm.explain("all_reduce", torch.ones(3)).algorithm == "one-shot"
    (backend,) = _made
    assert not _said
    calls: dict[str, int] = backend.calls()
    return calls


@pytest.mark.parametrize("size", [2, 3])
def test_operations_go_to_the_backend(size: int) -> None:
    for calls in run_ranks(size, _on_the_backend):
        assert set(calls) >= {"allreduce", "broadcast", "send", "recv", "alltoall_base", "gather"}


def _through_the_host(world: World, how: str) -> list[str]:
    if how == "shared device":
        device = _init(world, device=world.rank // 2)
    else:
        device = _init(world, known=world.rank != 1)
    _each(world, device)
    assert not any(count for backend in _made for count in backend.calls().values())
    path = fastcomm.explain("all_reduce", torch.ones(3, device=device))
    assert path.native and path.reason.endswith("from and to sim through the host's memory")
    return _said


@pytest.mark.parametrize("how", ["shared device", "rank without backend"])
def test_ranks_that_cannot_use_it_go_through_the_host(how: str) -> None:
    said, *others = run_ranks(3, _through_the_host, how)
    assert not any(others)
    (warning,) = said
    assert "3 ranks sends tensors on sim through the host's memory" in warning
    expected = "ranks 0 and 1 share a device, sim:0"
    assert (expected if how == "shared device" else "rank 1: torch has no backend") in warning


def _messages_first(world: World) -> None:
    device = _init(world)
    x = torch.full((2,), float(world.rank), device=device)
    dist.send(x, 1) if world.rank == 0 else dist.recv(x, 0)
    assert x.tolist() == [0, 0] and sum(_made[0].calls().values()) == 1
    assert dist.group.WORLD._get_backend(device)._get_sequence_number_for_group() == 0
    x.fill_(1)
    dist.all_reduce(x)
    assert x.tolist() == [2, 2] and len(_made) == 1


def test_messages_need_no_agreement() -> None:
    run_ranks(2, _messages_first)


def _new_group_of_a_bound_one(world: World) -> bool:
    sim.load()
    store = dist.FileStore(f"{world.directory}/store", world.size)
    dist.init_process_group(
        "cpu:fastcomm,sim:fastcomm",
        store=store,
        rank=world.rank,
        world_size=world.size,
        device_id=torch.device("sim", world.rank),
    )
    return dist.new_group([0]) is dist.GroupMember.NON_GROUP_MEMBER


def test_new_group_in_a_group_that_is_bound_to_a_device() -> None:
    assert run_ranks(2, _new_group_of_a_bound_one) == [False, True]


def _batch_on_the_host(world: World, devices: int) -> tuple[int, list[float]]:
    """Raise in a batch of messages; return how many works a good one has, and a sum after both."""
    _device_engines.register("sim", Factory("simccl", _make, str, lambda: devices))
    world.init("cpu:fastcomm")
    x, got = torch.full((2,), float(world.rank + 1)), torch.empty(2)
    peer = 1 - world.rank
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, got, peer)]
    )
    for work in works:
        work.wait()
    assert got.tolist() == [peer + 1] * 2
    refused = torch.eye(2).to_sparse_csr()
    catch(dist.batch_isend_irecv, [dist.P2POp(dist.isend, refused, peer)])
    dist.all_reduce(x)
    return len(works), x.tolist()


def test_batches_without_devices_are_those_of_a_build_without_them() -> None:
    assert run_ranks(2, _batch_on_the_host, 0) == [(2, [3.0, 3.0])] * 2


def _hang(world: World, how: str) -> tuple[list[Caught], float]:
    """Let rank 1 die, or not come, while the others wait in an operation of the backend."""
    x = _started(world)
    if how != "death":
        dist.group.WORLD._get_backend(x.device).set_timeout(timedelta(seconds=1.5))
    begun = time.monotonic()
    if world.rank == 1:
        if how == "death":
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        world.hear("given up")
        return [catch(dist.all_reduce, x)], 0
    if how == "nobody waits":
        work: Any = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            time.sleep(0.01)
        assert not work.is_success()
        caught = [catch(work.wait)]
    else:
        caught = [catch(dist.all_reduce, x)]
    waited = time.monotonic() - begun
    caught += [catch(dist.all_reduce, x), catch(dist.all_reduce, torch.ones(2))]
    world.tell("given up")
    assert x.tolist() == [world.size] * 4
    dist.destroy_process_group()
    assert time.monotonic() - begun < 2 * SOON
    return caught, waited


def test_a_peer_dies_while_the_backend_hangs() -> None:
    outcomes = run_outcomes(3, _hang, "death")
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        caught, waited = outcome.value
        assert [(one.kind, one.peer) for one in caught] == [("PeerLostError", 1)] * 3, caught
        assert caught[0].operation == "all_reduce" and waited < SOON
        assert outcome.exitcode == 0


def _loads(world: World, limit: float) -> tuple[Caught, float]:
    """Let rank 1 die while a thread waits in the driver for a device that waits for it."""
    x = _started(world)
    dist.group.WORLD._get_backend(x.device).set_timeout(timedelta(seconds=limit))
    if world.rank == 1:
        world.hear("issued")
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    work: Any = dist.all_reduce(x, async_op=True)
    world.tell("issued")
    begun = time.monotonic()
    sim.load().load_lazily(world.rank)
    caught = catch(work.wait)
    waited = time.monotonic() - begun
    dist.destroy_process_group()
    return caught, waited


def test_a_peer_dies_while_a_thread_is_in_the_driver() -> None:
    survivor, _ = run_outcomes(2, _loads, OPERATION)
    assert survivor.error is None, survivor.error
    caught, waited = survivor.value
    assert (caught.kind, caught.peer) == ("PeerLostError", 1), caught
    assert 0.4 < waited < SOON, waited


def test_without_looks_at_the_host_its_death_is_seen_when_the_driver_returns() -> None:
    """That is when the backend gives up, at its timeout."""
    environment = {**ELSEWHERE, "FC_CONTROL": "no_host_look"}
    survivor, _ = ranks.run_outcomes(2, _loads, 4.0, environment=environment)
    assert survivor.error is None, survivor.error
    caught, waited = survivor.value
    assert waited > 3.9, (caught, waited)


@pytest.mark.parametrize("how", ["late", "nobody waits"])
def test_a_timeout(how: str) -> None:
    (caught, waited), (late, _) = run_ranks(2, _hang, how)
    assert {one.kind for one in (*caught, *late)} == {"CollectiveTimeoutError"}, (caught, late)
    # Noticed by our watch or by the backend's own, whose timeout was set together with ours.
    assert re.search("simccl: (Timed out waiting 1500ms|.*Watchdog caught)", caught[0].text)
    assert caught[0].operation == "all_reduce" and 1.4 < waited < SOON


def _said_of_a_hang(world: World, how: str) -> str:
    path = Path(world.directory, f"said by {world.rank}")
    with path.open("w") as file:
        os.dup2(file.fileno(), 2)
    _hang(world, how)
    return path.read_text()


@pytest.mark.parametrize("how", ["late", "nobody waits"])
def test_a_long_wait_is_said(how: str) -> None:
    """Whether or not the host waits."""
    environment = {**ELSEWHERE, "FASTCOMM_WAIT_WARNING_S": "0.5"}
    said = run_ranks(2, _said_of_a_hang, how, environment=environment)[0]
    front = "[rank0]: fastcomm: group '0' of all 2 ranks: [rank 0 of 2, all_reduce, sequence"
    assert re.search(re.escape(front) + r" \d+\] has waited for \S+ s for simccl, which", said)


def _another_group(world: World) -> list[float]:
    x = _started(world)
    _made[0].hang_next()
    threading.Timer(0.3, dist.group.WORLD._get_backend(x.device).abort).start()
    caught = catch(dist.all_reduce, x)
    assert caught.kind == "GroupPoisonedError" and caught.seconds < SOON, caught
    dist.destroy_process_group()
    world.init("cpu:fastcomm,sim:fastcomm", name="another")
    dist.all_reduce(x)
    values: list[float] = x.tolist()
    return values


def test_abort_ends_it_and_another_group_can_be_formed() -> None:
    assert run_ranks(2, _another_group) == [[4.0] * 4] * 2


def _destroy_first(world: World) -> list[float]:
    x = _started(world)
    work: Any = dist.all_reduce(x, async_op=True)
    dist.destroy_process_group()
    work.wait()
    assert work.is_success()
    values: list[float] = x.tolist()
    return values


def test_what_has_ended_before_the_group_was_destroyed_has_ended_well() -> None:
    assert run_ranks(2, _destroy_first) == [[4.0] * 4] * 2


def _destroy_while_a_peer_dies(world: World) -> tuple[Caught, float]:
    x = _started(world)
    if world.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    work: Any = dist.all_reduce(x, async_op=True)
    begun = time.monotonic()
    dist.destroy_process_group()
    return catch(work.wait), time.monotonic() - begun


def test_a_peer_dies_while_a_group_is_destroyed() -> None:
    outcome = run_outcomes(2, _destroy_while_a_peer_dies)[0]
    assert outcome.error is None, outcome.error
    caught, seconds = outcome.value
    assert (caught.kind, caught.peer) == ("PeerLostError", 1), caught
    assert seconds < SOON


def _fail_natively(world: World) -> list[Caught]:
    x = _started(world)
    if world.rank == 0:
        _made[0].hang_next()
    work: Any = dist.all_reduce(x, async_op=True) if world.rank == 0 else None
    native = catch(dist.all_reduce, torch.ones(2 + world.rank))
    if work is None:
        return [native]
    caught = [native, catch(work.wait), catch(dist.broadcast, x, 0)]
    assert _made[0].get_error() != 0  # aborted
    return caught


def test_what_fails_in_shared_memory_ends_the_backend() -> None:
    for caught in run_ranks(2, _fail_natively):
        assert {one.kind for one in caught} == {"CollectiveMismatchError"}, caught
        assert all(one.seconds < SOON for one in caught)


def _fail_there(world: World) -> list[Caught]:
    x = _started(world)
    if world.rank == 0:
        _made[0].fail_next()
    first = catch(dist.all_reduce, x)
    return [first, catch(dist.all_reduce, torch.ones(2))]


def test_what_fails_there_fails_the_group_on_every_rank() -> None:
    own, others = run_ranks(2, _fail_there)
    assert {one.kind for one in own} == {"CommunicationSystemError"}, own
    assert "simccl: NCCL error" in own[0].text
    assert {one.kind for one in others} <= {"GroupPoisonedError", "CommunicationSystemError"}


def _crash_there(world: World) -> list[Caught]:
    x = _started(world)
    if world.rank == 0:
        _made[0].spoil_next()
    work: Any = dist.all_reduce(x, async_op=True)
    time.sleep(0.3)  # the death watch asks
    own = [catch(work.wait)] if world.rank == 0 else []
    return [*own, catch(dist.all_reduce, x)]


def test_a_device_that_has_crashed_fails_the_group_and_not_the_process() -> None:
    (first, later), (other,) = run_ranks(2, _crash_there)
    assert first.kind == later.kind == "CommunicationSystemError", first
    assert "simccl: CUDA error: device-side assert triggered" in first.text
    assert other.kind == "GroupPoisonedError", other


def _mixed(world: World) -> Caught:
    device = _init(world)
    x = torch.ones(4, device=device if world.rank == 0 else "cpu")
    return catch(dist.all_reduce, x)


def test_a_mixed_call_is_a_mismatch() -> None:
    for caught in run_ranks(2, _mixed):
        assert caught.kind == "CollectiveMismatchError", caught
        assert "to agree what serves tensors on sim" in caught.text


def _expire(world: World) -> None:
    wait_that_expires(world, _init(world))


def test_a_wait_that_expires_harms_nothing() -> None:
    run_ranks(2, _expire)


def _train(world: World) -> None:
    train_ddp_on_both(world, _init(world))
    assert _made[0].calls()["allreduce"] >= 4


def test_stock_ddp_has_the_weights_of_the_cpu() -> None:
    run_ranks(2, _train)
