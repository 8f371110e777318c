"""How the tests are run: what is chosen, what is built first, and which take turns.

The tests of a file run in one worker, files side by side (``-n 2 --dist loadfile``), except tests
marked `serial`, which look at times or at things of the whole machine, come last, and run alone.
While the first files run, which need none of it, the C++ of the rest is built
(tests/support/beside.py); without workers it is built before the first test.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import tempfile
from collections.abc import Iterable, Iterator

import durations
import pytest
import sim
from support import beside, gpu, nvcc, places, programs
from support.namespaces import Host, switched_hosts, two_hosts, why_no_hosts, why_no_switch

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
    # What was found wrong on this machine must not hide what tests would find.
    os.environ.setdefault("FASTCOMM_VERDICTS", "off")
    os.environ.setdefault("FASTCOMM_TUNING", "off")
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
    files = {item: file_of(item.nodeid) for item in chosen}
    last = {file: bool(programs.needed([name_of(file)])) for file in set(files.values())}
    simulated = {files[item] for item in chosen if item.get_closest_marker("simulated")}

    def place_of(item: pytest.Item) -> tuple[object, ...]:
        """Order by build time, longest last; then the longest file first, for an even end."""
        file = files[item]
        return is_serial(item), last[file], file in simulated, -expected.get(file, 0.0), file

    chosen.sort(key=place_of)  # within a file as it is
    for item in chosen:
        if item.get_closest_marker("gpu") and gpu.WHY_NONE is not None:
            item.add_marker(pytest.mark.skip(reason=gpu.WHY_NONE))
        if item.get_closest_marker("nvcc") and nvcc.HOME is None:
            item.add_marker(pytest.mark.skip(reason=nvcc.WHY_NONE))
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
    """Tell whether accelerators run a test: not its CPU variant, nor what needs CUDA."""
    marked = item.get_closest_marker("accelerator") and not item.get_closest_marker("gpu")
    call = getattr(item, "callspec", None)
    place = call.params.get("place") if call else None
    return place == "accelerator" or (place is None and bool(marked))


@pytest.fixture(autouse=True)
def _ordered(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves unordered uses of simulated memory."""
    yield
    if request.config.getoption("--accelerator"):
        sim.check()


@pytest.fixture(params=["cpu", pytest.param("accelerator", marks=pytest.mark.accelerator)])
def place(request: pytest.FixtureRequest) -> places.Place:
    """Where a test's tensors and replicas live: slots of the CPU, or devices of an accelerator."""
    return places.CPU if request.param == "cpu" else places.ACCELERATOR


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Yield two hosts, as network namespaces; skip where there can be none."""
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    with two_hosts() as pair:
        yield pair


@pytest.fixture(scope="module")
def four_hosts() -> Iterator[list[Host]]:
    """Yield four hosts at one switch, as `hosts`."""
    if (reason := why_no_switch()) is not None:
        pytest.skip(reason)
    with switched_hosts(4) as several:
        yield several


def is_serial(item: pytest.Item) -> bool:
    return item.get_closest_marker("serial") is not None


def file_of(nodeid: str) -> str:
    return nodeid.split("::")[0]


def name_of(file: str) -> str:
    """Return a test file's name in the table of C++ programs."""
    return file.removeprefix("tests/")


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None and not config.getoption("collectonly"):
        prebuild((item.nodeid for item in session.items), config)
    if worker == "gw0":  # one of them; every worker has all tests
        chosen = dict.fromkeys(file_of(item.nodeid) for item in session.items)
        files = [file for file in chosen if programs.needed([name_of(file)])]
        simulation = any(item.get_closest_marker("simulated") for item in session.items)
        stack = contextlib.ExitStack()
        stack.enter_context(
            beside.building(os.environ[TURNS], simulation and not sim.missing(), files)
        )
        config.add_cleanup(stack.close)


def prebuild(ids: Iterable[str], config: pytest.Config) -> None:
    wanted = programs.needed({name_of(file_of(nodeid)) for nodeid in ids})
    capture = config.pluginmanager.getplugin("capturemanager")
    if wanted:
        with capture.global_and_fixture_disabled():
            print(f"\nbuilding {len(wanted)} C++ programs of the tests", flush=True)
            programs.make(wanted, quiet=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout's clock
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    wait_for_builds(item)
    with turn(fcntl.LOCK_EX if is_serial(item) else fcntl.LOCK_SH):
        return (yield)


def wait_for_builds(item: pytest.Item) -> None:
    """Wait for what a test needs, once per worker; the test itself reports a failure."""
    with contextlib.suppress(RuntimeError):
        programs.make(programs.needed([name_of(file_of(item.nodeid))]))
        if item.get_closest_marker("simulated") and not sim.missing():
            simulation()


@functools.cache
def simulation() -> None:
    sim.build.library()


@contextlib.contextmanager
def turn(kind: int) -> Iterator[None]:
    # Unlike flock's, these locks are not inherited by what a test forks and leaves behind.
    with open(os.environ[TURNS], "r+") as lock:
        fcntl.lockf(lock, kind)
        yield
