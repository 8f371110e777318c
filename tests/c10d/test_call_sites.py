"""FASTCOMM_CALL_SITES: messages say at which line of the program each rank made its call."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.direct import init
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


def _too_late(world: World) -> Caught | None:
    world.init()
    dist.all_reduce(torch.ones(4), async_op=True).wait()  # of both
    if world.rank == 1:
        world.hear("given up")
        return None
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.register_hook(lambda gradient: dist.all_reduce(gradient))
    caught = catch(lambda: (parameter * 2).sum().backward())
    world.tell("given up")
    return caught


def test_a_timeout_says_where_the_peer_made_its_last_call() -> None:
    caught = run_ranks(2, _too_late, group_timeout=2, environment=ON)[0]
    last = f"all_reduce(sum, float32, 4 elements), sequence 0, at {_line_of(' # of both')}"
    assert f"the last it called was {last}" in caught.text, caught.text


def _unlike_messages(world: World) -> Caught:
    world.init()
    if world.rank == 0:
        return catch(lambda: [dist.send(torch.ones(4), 1), dist.barrier()])
    return catch(lambda: dist.recv(torch.ones(5), 0))  # of one more


def test_a_message_that_does_not_fit_says_where_it_is_received() -> None:
    for caught in run_ranks(2, _unlike_messages, environment=ON):
        assert f"tag 0, at {_line_of(' # of one more')}" in caught.text, caught.text


def _nobody_sends(world: World) -> Caught | None:
    world.init()
    if world.rank == 1:
        world.hear("given up")
        return None
    caught = catch(lambda: dist.recv(torch.ones(5), 1))  # in vain
    world.tell("given up")
    return caught


@pytest.mark.parametrize("way", ["auto", "gloo"])
def test_a_receive_in_vain_says_where_it_is(way: str) -> None:
    environment = {**ON, "FASTCOMM_TRANSPORT": way}
    caught = run_ranks(2, _nobody_sends, group_timeout=2, environment=environment)[0]
    assert caught is not None and caught.kind == "CollectiveTimeoutError", caught
    assert f", at {_line_of(' # in vain')}" in caught.text, caught.text


def _devices_differ(world: World) -> Caught:
    device = init(world)
    dist.all_reduce(torch.ones(4, device=device))
    work: Any = dist.all_reduce(torch.ones(4 + world.rank, device=device), async_op=True)  # unlike
    torch.sim.synchronize()
    return catch(work.wait)


@pytest.mark.usefixtures("simulated")
def test_a_mismatch_of_devices_says_where_the_rank_that_noticed_it_made_its_call() -> None:
    """Devices do not tell each other where."""
    call = r"rank (\d) called all_reduce\(sum, float32, [45] elements\), sequence \d+"
    for caught in run_ranks(2, _devices_differ, environment=ON):
        assert re.search(rf"{call}, at {re.escape(_line_of(' # unlike'))}", caught.text), caught
        numbers = set(re.findall(r"sequence (\d+)", caught.text))
        assert numbers == {str(caught.sequence)}, caught  # of the operations on devices


def _devices_differ_far_away(world: World) -> str:
    device = init(world)
    run = partial(dist.all_reduce, torch.ones(4 + world.rank, device=device), async_op=True)
    work: Any = eval(compile("run()", "/" + "ö" * 300 + "/train.py", "eval"), {"run": run})
    torch.sim.synchronize()
    return catch(work.wait).text


@pytest.mark.usefixtures("simulated")
def test_a_mismatch_of_devices_with_long_names_keeps_their_ends() -> None:
    call = r"all_reduce\(sum, float32, [45] elements\), sequence \d+, at \.\.\.ö+/train\.py:1"
    for text in run_ranks(2, _devices_differ_far_away, environment=ON):
        assert re.search(call, text), text


def _long_names(world: World) -> str:
    world.init()
    if world.rank == 1:
        return catch(lambda: dist.barrier()).text
    return catch(
        lambda: exec(
            compile("run()", "/" + "ö" * 300 + "/train.py", "exec"),
            {"run": partial(dist.all_reduce, torch.ones(4))},
        )
    ).text


def test_a_long_name_lacks_its_beginning() -> None:
    for text in run_ranks(2, _long_names, environment=ON):
        assert re.search(r"sequence 0, at \.\.\.ö{50,}/train\.py:1", text), text
