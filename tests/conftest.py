"""How the tests are run: what is chosen, what is built before, and which take turns.

The tests of a file run in one worker, files side by side (``-n 2 --dist loadfile``), but for tests
marked `serial`: they look at times or at things of the whole machine, come last, and run alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import durations
import pytest
import sim
from support import gpu, nvcc, places, programs

# A file that tests hold a lock on: together, or alone if they are serial.
TURNS = "FC_TEST_TURNS"
NO_ACCELERATOR = "no accelerator here; simulated ones run this in tests/sim/test_on_devices.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--release",
        action="store_true",
        help="run the tests marked release, which take long, and no others",
    )
    parser.addoption(
        "--accelerator",
        choices=["sim"],
        help="run the tests for accelerators, and no others, on simulated devices",
    )


def pytest_configure(config: pytest.Config) -> None:
    if TURNS not in os.environ:
        handle, os.environ[TURNS] = tempfile.mkstemp(prefix="fastcomm-tests-")
        os.close(handle)
        config.add_cleanup(lambda: os.unlink(os.environ.pop(TURNS)))
    if config.getoption("--accelerator"):
        sim.load()  # for good, and before anything of fastcomm is loaded


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--release")
    chosen = [item for item in items if bool(item.get_closest_marker("release")) == wanted]
    if config.getoption("--accelerator"):
        chosen = [item for item in chosen if is_for_accelerators(item)]
    if left_out := [item for item in items if item not in set(chosen)]:
        config.hook.pytest_deselected(items=left_out)
    for item in chosen:
        if "simulated" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.simulated)
    expected = durations.expected()
    files = {item: item.nodeid.split("::")[0] for item in chosen}
    # The longest file first, so that no worker is left alone with it; within a file as it is.
    chosen.sort(key=lambda item: (is_serial(item), -expected.get(files[item], 0.0), files[item]))
    for item in chosen:
        if item.get_closest_marker("gpu") and gpu.WHY_NONE is not None:
            item.add_marker(pytest.mark.skip(reason=gpu.WHY_NONE))
        if item.get_closest_marker("nvcc") and nvcc.HOME is None:
            item.add_marker(pytest.mark.skip(reason="nvcc is missing: install the CUDA toolkit"))
        if is_for_accelerators(item) and places.kind() is None:
            item.add_marker(pytest.mark.skip(reason=NO_ACCELERATOR))
    items[:] = chosen


@pytest.fixture(scope="session")
def simulated() -> None:
    """Build what ranks load with ``sim.load()``, before their deadlines run."""
    if reason := sim.missing():
        pytest.skip(f"no simulated accelerator: {reason}")
    sim.build.library()


def is_for_accelerators(item: pytest.Item) -> bool:
    """Tell whether accelerators run a test: not its variant for the CPU, nor what needs CUDA."""
    marked = item.get_closest_marker("accelerator") and not item.get_closest_marker("gpu")
    call = getattr(item, "callspec", None)
    place = call.params.get("place") if call else None
    return place == "accelerator" or (place is None and bool(marked))


@pytest.fixture(autouse=True)
def _ordered(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves uses of simulated memory without order."""
    yield
    if request.config.getoption("--accelerator"):
        sim.check()


@pytest.fixture(params=["cpu", pytest.param("accelerator", marks=pytest.mark.accelerator)])
def place(request: pytest.FixtureRequest) -> places.Place:
    """Where a test's tensors and replicas live: slots of the CPU, or devices of an accelerator."""
    return places.CPU if request.param == "cpu" else places.ACCELERATOR


def is_serial(item: pytest.Item) -> bool:
    return item.get_closest_marker("serial") is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Build before the first test, in the process that can show it; every worker has all tests."""
    if node.gateway.id == "gw0":
        prebuild(ids, node.config)


def pytest_collection_finish(session: pytest.Session) -> None:
    in_worker = hasattr(session.config, "workerinput")
    if not in_worker and not session.config.getoption("collectonly"):
        prebuild((item.nodeid for item in session.items), session.config)


def prebuild(ids: Iterable[str], config: pytest.Config) -> None:
    wanted = programs.needed({nodeid.split("::")[0].removeprefix("tests/") for nodeid in ids})
    capture = config.pluginmanager.getplugin("capturemanager")
    if wanted:
        with capture.global_and_fixture_disabled():
            print(f"\nbuilding {len(wanted)} C++ programs of the tests", flush=True)
            programs.make(wanted, quiet=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # a turn comes before pytest-timeout's clock
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with turn(fcntl.LOCK_EX if is_serial(item) else fcntl.LOCK_SH):
        return (yield)


@contextlib.contextmanager
def turn(kind: int) -> Iterator[None]:
    # Unlike flock's, these locks are not inherited by what a test forks and leaves behind.
    with open(os.environ[TURNS], "r+") as lock:
        fcntl.lockf(lock, kind)
        yield
