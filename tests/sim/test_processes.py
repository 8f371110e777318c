"""Simulated devices' memory that several processes have mapped, as torch tensors.

Each kind of order between processes is left out once, and reported in every run: what counts is
which flags and messages a process has read, not who was faster.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_outcomes, run_ranks

import sim

pytestmark = pytest.mark.usefixtures("simulated")

BYTES = 4096
FLAGS = 64  # bytes in front: a flag for each rank, which alone stores it


class Mail:
    """Messages between hosts, which order nothing unless asked to."""

    def __init__(self, world: World) -> None:
        self.store = dist.FileStore(os.path.join(world.directory, "mail"), world.size)
        self.world = world
        self.meetings = 0

    def exchange(self, own: bytes) -> list[bytes]:
        """Return what each rank gives."""
        self.meetings += 1
        self.store.set(f"{self.meetings}/{self.world.rank}", own)
        return [self.store.get(f"{self.meetings}/{r}") for r in range(self.world.size)]

    def meet(self, ordered: bool) -> None:
        """Wait for all ranks; ordered: all come after what the others have waited for."""
        native = sim.load()
        for text in self.exchange(native.host_message()):
            if ordered:
                native.host_has_read(text)


@dataclass
class Window:
    """A rank's memory as another has it mapped: flags, and numbers."""

    memory: torch.Tensor

    def flag(self, rank: int) -> torch.Tensor:
        """Return the flag that a rank stores here."""
        return self.memory[:FLAGS].view(torch.int32)[rank : rank + 1]

    @property
    def numbers(self) -> torch.Tensor:
        """Return the numbers as float32."""
        return self.memory[FLAGS:].view(torch.float32)


def open_windows(world: World, mail: Mail) -> list[Window]:
    """Return all ranks' windows; each lies on the device of its rank's number."""
    native = sim.load()
    torch.sim.set_device(world.rank)
    own = torch.zeros(BYTES, dtype=torch.uint8, device=f"sim:{world.rank}")
    torch.sim.synchronize()
    windows = []
    for rank, handle in enumerate(mail.exchange(native.handle_of(own))):
        here = rank == world.rank
        windows.append(Window(own if here else native.open_handle(handle, BYTES, world.rank)))
    return windows


def close_windows(windows: list[Window], mail: Mail) -> None:
    """Wait, release the others' memory, and, only when all have done so, this rank's own."""
    torch.sim.synchronize(mail.world.rank)
    own = windows[mail.world.rank]
    windows.clear()
    mail.meet(ordered=True)
    del own


def _pass_around(world: World, steps: int, left_out: str) -> list[float]:
    """Let each rank write its neighbour's numbers, which that one sums up; on two streams.

    ``left_out``: "ready": the reader does not wait for the writer's flag; "event": it waits in a
    different stream from the one it reads in; "free": the writer does not wait until the last
    numbers have been read. Then hosts meet at every turn, which settles who comes first, and
    nothing else.
    """
    native = sim.load()
    mail = Mail(world)
    windows = open_windows(world, mail)
    rank, after = world.rank, (world.rank + 1) % world.size
    before = (rank - 1) % world.size
    mine, other = windows[rank], windows[after]
    side = torch.Stream(f"sim:{rank}")
    total = torch.zeros_like(mine.numbers)

    def turn() -> None:
        if left_out:
            torch.sim.synchronize(rank)
            mail.meet(ordered=False)

    for step in range(1, steps + 1):
        values = torch.full_like(total, step * 10 + rank)
        if left_out != "free":
            # Stored by the neighbour, in this rank's window, when it had read the last numbers.
            native.await_flag(mine.flag(after), 2 * (step - 1))
        other.numbers.copy_(values)
        native.store_flag(other.flag(rank), 2 * step - 1)
        turn()
        with side:
            if left_out != "ready":
                native.await_flag(mine.flag(before), 2 * step - 1)
        if left_out != "event":
            torch.sim.current_stream().wait_stream(side)
        total += mine.numbers
        native.store_flag(windows[before].flag(rank), 2 * step)
        turn()
    result: list[float] = total.cpu().unique().tolist()
    del mine, other
    close_windows(windows, mail)
    return result


@pytest.mark.parametrize("queues", ["1", "8", "32"])
@pytest.mark.parametrize("size", [2, 3])
def test_numbers_go_around_in_order_of_flags(size: int, queues: str) -> None:
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": queues}
    sums = run_ranks(size, _pass_around, 5, "", environment=environment)
    expected = [sum(step * 10 + (rank - 1) % size for step in range(1, 6)) for rank in range(size)]
    assert sums == [[float(each)] for each in expected]


@pytest.mark.parametrize(
    ("left_out", "does", "earlier"),
    [("ready", "reads", "writes"), ("event", "reads", "writes"), ("free", "writes", "reads")],
)
def test_a_missing_order_is_reported(left_out: str, does: str, earlier: str) -> None:
    where = f"{BYTES - FLAGS} bytes at {FLAGS} of memory of process [0-9]+"
    text = f" {does} {where}, which .* {earlier}, and nothing orders"
    for outcome in run_outcomes(3, _pass_around, 2, left_out):
        assert re.search(text, outcome.error or ""), outcome.error


def _by_message(world: World, ordered: bool) -> Any:
    """Let rank 0 write and wait; then rank 1 reads, told by a message."""
    mail = Mail(world)
    windows = open_windows(world, mail)
    if world.rank == 0:
        windows[1].numbers.fill_(3)
        torch.sim.synchronize()
    mail.meet(ordered)
    result = windows[1].numbers.sum().item() if world.rank == 1 else None
    found = sim.hazards()
    close_windows(windows, mail)
    return result, found


def test_a_message_between_hosts_orders_what_the_sender_has_waited_for() -> None:
    assert run_ranks(2, _by_message, True)[1] == (3 * (BYTES - FLAGS) / 4, [])


def test_a_message_orders_nothing_by_itself() -> None:
    result, found = run_ranks(2, _by_message, False)[1]
    assert result == 3 * (BYTES - FLAGS) / 4  # it was in time
    assert any("reads" in text and "nothing orders" in text for text in found), found


def _given_back_too_early(world: World) -> list[str]:
    mail = Mail(world)
    windows = open_windows(world, mail)
    if world.rank == 0:
        del windows[0]
        torch.ones(3, device="sim:0")  # the launch that overwrites what was given back
        torch.sim.synchronize()
    mail.meet(ordered=False)
    if world.rank == 1:
        windows[0].numbers.sum().item()
    found = sim.hazards()
    torch.sim.synchronize(world.rank)
    windows.clear()
    mail.meet(ordered=True)
    return found


def test_memory_that_its_owner_uses_again_is_reported() -> None:
    found = run_ranks(2, _given_back_too_early)[1]
    text = "reads .* which the allocator gives memory to others .* writes, and nothing orders"
    assert any(re.search(text, each) for each in found), found


def _refused(world: World) -> list[str]:
    native = sim.load()
    mail = Mail(world)
    own = torch.zeros(BYTES, dtype=torch.uint8, device="sim:0")
    torch.sim.synchronize()
    texts = []

    def attempt(call: Any) -> None:
        try:
            call()
            texts.append("")
        except RuntimeError as error:
            texts.append(str(error))

    attempt(lambda: native.open_handle(native.handle_of(own), BYTES, 0))
    handles = mail.exchange(native.handle_of(own))
    attempt(lambda: native.open_handle(handles[1 - world.rank], BYTES, 1))
    attempt(lambda: native.open_handle(bytes(64), BYTES, 0))
    mail.meet(ordered=True)
    return texts


def test_what_is_refused() -> None:
    """Refuse as CUDA does: a process's own handle, a device without access, no handle."""
    for own, unreached, none in run_ranks(2, _refused, environment={"SIM_LINKS": "0-1 none"}):
        assert "invalid device context" in own
        assert "peer access is not supported" in unreached
        assert "invalid resource handle" in none


def _unsupported(world: World) -> None:
    tensor = torch.zeros(BYTES, dtype=torch.uint8, device=sim.load() and "sim:0")
    with pytest.raises(RuntimeError, match="operation not supported"):
        sim.load().handle_of(tensor)


def test_machines_without_it() -> None:
    run_ranks(1, _unsupported, environment={"SIM_IPC": "0"})
