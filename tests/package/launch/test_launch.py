"""`fastcomm.launch`: ranks from a script or a notebook, and every way in which they may fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.interrupts import interruptible
from support.patience import ENDS, has_ended, until

import fastcomm
from fastcomm._launch import processes

SCRIPT = """
import os
import torch
import torch.distributed as dist
import fastcomm

class Pair:
    def __init__(self, first, second):
        self.both = first, second

def work(x):
    total = x + dist.get_rank()
    dist.all_reduce(total)
    print("from rank", dist.get_rank())
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    return Pair(total, [dist.get_backend(), *(os.environ[name] for name in names)])

values = fastcomm.launch(work, (torch.arange(3.0),), ranks=2)  # no guard
for value in values:
    assert type(value) is Pair
    print(value.both[0].tolist(), *value.both[1])
"""


def test_a_script_without_a_guard(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=ENDS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert sorted(said[:2]) == ["from rank 0", "from rank 1"]
    assert said[2:] == [
        f"[1.0, 3.0, 5.0] fastcomm {rank} {rank} 2 2 127.0.0.1" for rank in range(2)
    ]


def forms_groups(settings: dict[str, str]) -> Any:
    assert not dist.is_initialized()
    for backend in ("fastcomm", "gloo"):
        dist.init_process_group(backend)
        total = torch.ones(2)
        dist.all_reduce(total)
        assert total.tolist() == [2, 2] and dist.get_backend() == backend
        dist.destroy_process_group()
    print(f"rank {os.environ['RANK']}: grüße")
    print("no end of line", end="", file=sys.stderr)
    return {name: os.environ.get(name) for name in settings}


def test_groups_of_its_own_and_what_ranks_print(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"OMP_NUM_THREADS": "7", "FC_NEW": "x"}
    found = fastcomm.launch(forms_groups, (settings,), ranks=2, backend=None, env=settings)
    assert found == [settings, settings]
    said, told = capsys.readouterr()
    assert sorted(said.splitlines()) == ["rank 0: grüße", "rank 1: grüße"]
    assert "no end of line\nno end of line\n" in told


def fails_on_1() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if dist.get_rank() == 1:
        raise ValueError("too large")
    if dist.get_rank() == 2:
        time.sleep(ENDS)
    dist.barrier()


def test_the_first_that_fails_stands_first_and_the_others_are_ended() -> None:
    begin = time.monotonic()
    with pytest.raises(fastcomm.LaunchError) as raised:
        fastcomm.launch(fails_on_1, ranks=3)
    assert time.monotonic() - begin < ENDS / 3
    error = raised.value
    assert list(error.failures) == [1, 0] and error.ended == (2,)
    first, *_ = str(error).splitlines()
    assert first == "2 of 3 ranks failed, rank 1 first"
    assert "ended because of that: rank 2" in str(error)
    assert error.failures[1].endswith("ValueError: too large")
    assert "in fails_on_1" in error.failures[1] and "answer_with" not in str(error)
    assert "PeerLeftError" in error.failures[0] and "too large" in error.failures[0]


def ends_in_all_ways(folder: str) -> Any:
    rank = int(os.environ["RANK"])
    if rank == 0:
        return threading.Lock()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        os._exit(0)
    sys.exit(3)


def test_each_end_without_a_value_is_told(tmp_path: Path) -> None:
    with pytest.raises(fastcomm.LaunchError) as raised:
        fastcomm.launch(ends_in_all_ways, (str(tmp_path),), backend=None)
    told = raised.value.failures
    assert set(told) == {0, 1, 2, 3} and raised.value.ended == ()
    assert re.match("its value, of type lock, cannot be pickled: TypeError: cannot pickle", told[0])
    assert told[1].startswith("its process was killed by SIGKILL")
    assert told[2] == "its process ended with status 0 before the function returned"
    assert told[3].endswith("SystemExit: 3")


class OnlyThere:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def lives_on(event: str) -> Any:
    threading.Thread(target=time.sleep, args=(ENDS,)).start()
    return event


def keeps_an_executor() -> int:
    executor = ThreadPoolExecutor(1)
    vars(sys)["executor"] = executor
    return executor.submit(len, "abc").result()


def test_executors_end_with_a_rank() -> None:
    """As those do that torch's compiler keeps: their threads are no daemons."""
    assert fastcomm.launch(keeps_an_executor, ranks=1, backend=None) == [3]


def test_what_comes_after_the_value_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "EXIT_S", 0.5)
    with pytest.raises(fastcomm.LaunchError, match="rank 0: has returned, but its process lives"):
        fastcomm.launch(lives_on, ("x",), ranks=1, backend=None)
    with pytest.raises(fastcomm.LaunchError, match="rank 0: its value cannot be unpickled here"):
        fastcomm.launch(OnlyThere, ranks=1, backend=None)


ENDLESS = """
import os, pathlib, time
import fastcomm

def work():
    folder = pathlib.Path(os.environ["FC_FOLDER"])
    (folder / "new").write_text(str(os.getpid()))
    os.rename(folder / "new", folder / ("pid" + os.environ["RANK"]))
    time.sleep(300)

fastcomm.launch(work, ranks=1, backend=None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("cloudpickle")
    (tmp_path / "endless.py").write_text(ENDLESS)
    with interruptible():
        parent = subprocess.Popen(
            [sys.executable, str(tmp_path / "endless.py")],
            env={**os.environ, "FC_FOLDER": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
        )
    pid = tmp_path / "pid0"
    until(pid.exists, "the rank does not start")
    assert not has_ended(int(pid.read_text()))
    parent.send_signal(number)
    _, told = parent.communicate(timeout=ENDS)
    assert parent.returncode == -number, told
    assert ("KeyboardInterrupt" in told) == (number == signal.SIGINT)
    until(lambda: has_ended(int(pid.read_text())), "the rank lives on")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"ranks": 0}, "ranks must be at least 1, not 0"), ({"timeout": 0}, "timeout must be above")],
)
def test_arguments_that_cannot_be(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fastcomm.launch(print, **options)
