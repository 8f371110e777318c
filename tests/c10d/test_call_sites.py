"""FASTCOMM_CALL_SITES: messages say at which line of the program each rank made its call."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.direct import init
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World, run_ranks

ON = {"FASTCOMM_CALL_SITES": "on"}


def _line_of(words: str) -> str:
    """Return the place of the only line of this file with these words."""
    found = [
        number
        for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
        if line.endswith(words)
    ]
    assert len(found) == 1, (words, found)
    return f"{__file__}:{found[0]}"


def _differently(world: World) -> Caught:
    world.init()
    dist.barrier()
    if world.rank == 2:
        return catch(lambda: dist.broadcast(torch.ones(4), 0))  # the odd one
    return catch(lambda: dist.all_reduce(torch.ones(4)))  # the others


def test_a_mismatch_says_where_each_rank_made_its_call() -> None:
    places = [_line_of(" # the odd one"), _line_of(" # the others")]
    for caught in run_ranks(4, _differently, environment=ON):
        assert "rank 2 is the odd one" in caught.text, caught.text
        assert all(f"sequence 1, at {place}" in caught.text for place in places), caught.text


def test_nothing_is_said_where_nobody_asks() -> None:
    for caught in run_ranks(4, _differently):
        assert "rank 2 is the odd one" in caught.text and ", at " not in caught.text, caught.text


@on_ranks(2, group_timeout=2, environment=ON)
def test_a_timeout_says_where_the_peer_made_its_last_call(world: World) -> None:
    world.init()
    dist.all_reduce(torch.ones(4), async_op=True).wait()  # of both
    if world.rank == 1:
        return world.hear("given up")
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.register_hook(lambda gradient: dist.all_reduce(gradient))
    caught = catch(lambda: (parameter * 2).sum().backward())
    world.tell("given up")
    last = f"all_reduce(sum, float32, 4 elements), sequence 0, at {_line_of(' # of both')}"
    assert f"the last it called was {last}" in caught.text, caught.text


@on_ranks(2, environment=ON)
def test_a_message_that_does_not_fit_says_where_it_is_received(world: World) -> None:
    world.init()
    if world.rank == 0:
        caught = catch(lambda: [dist.send(torch.ones(4), 1), dist.barrier()])
    else:
        caught = catch(lambda: dist.recv(torch.ones(5), 0))  # of one more
    assert f"tag 0, at {_line_of(' # of one more')}" in caught.text, caught.text


@on_ranks(2, environments=TRANSPORTS, environment=ON, group_timeout=2)
def test_a_receive_in_vain_says_where_it_is(world: World) -> None:
    world.init()
    if world.rank == 1:
        return world.hear("given up")
    caught = catch(lambda: dist.recv(torch.ones(5), 1))  # in vain
    world.tell("given up")
    assert caught.kind == "CollectiveTimeoutError", caught
    assert f", at {_line_of(' # in vain')}" in caught.text, caught.text


@pytest.mark.usefixtures("simulated")
@on_ranks(2, environment=ON)
def test_a_mismatch_of_devices_says_where_the_rank_that_noticed_it_made_its_call(
    world: World,
) -> None:
    """Devices do not tell each other where."""
    device = init(world)
    dist.all_reduce(torch.ones(4, device=device))
    work: Any = dist.all_reduce(torch.ones(4 + world.rank, device=device), async_op=True)  # unlike
    torch.sim.synchronize()
    caught = catch(work.wait)
    call = r"rank (\d) called all_reduce\(sum, float32, [45] elements\), sequence \d+"
    assert re.search(rf"{call}, at {re.escape(_line_of(' # unlike'))}", caught.text), caught
    numbers = set(re.findall(r"sequence (\d+)", caught.text))
    assert numbers == {str(caught.sequence)}, caught  # of the operations on devices


def _far_away(run: Callable[[], Any]) -> Any:
    """Call ``run`` from a file with a long name."""
    return eval(compile("run()", "/" + "ö" * 300 + "/train.py", "eval"), {"run": run})


@pytest.mark.usefixtures("simulated")
@on_ranks(2, environment=ON)
def test_a_mismatch_of_devices_with_long_names_keeps_their_ends(world: World) -> None:
    given = torch.ones(4 + world.rank, device=init(world))
    work = _far_away(partial(dist.all_reduce, given, async_op=True))
    torch.sim.synchronize()
    call = r"all_reduce\(sum, float32, [45] elements\), sequence \d+, at \.\.\.ö+/train\.py:1"
    assert re.search(call, text := catch(work.wait).text), text


@on_ranks(2, environment=ON)
def test_a_long_name_lacks_its_beginning(world: World) -> None:
    world.init()
    call = dist.barrier if world.rank else partial(dist.all_reduce, torch.ones(4))
    text = catch(lambda: _far_away(call)).text
    assert re.search(r"sequence 0, at \.\.\.ö{50,}/train\.py:1", text), text
