"""Bodies of processes: one runs a rank of a test, others list torch's tests and skips."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from conformance.forced import ON_CPU, unskip
from support.namespaces import Host

# The class's name in torch's own file for Gloo.
CLASS = "TestDistBackendWithSpawn"
# A test of the runner itself, run only if --only names it.
HANG = "test_that_hangs"


@dataclass(frozen=True)
class Place:
    """A rank of a test: its number, group size, backend, folder and host, if there are several."""

    rank: int
    size: int
    backend: str
    directory: str
    host: Host | None = None

    @property
    def log(self) -> str:
        return os.path.join(self.directory, f"log-{self.rank}")

    def environment(self) -> dict[str, str]:
        return environment(self.size) | {"TEMP_DIR": self.directory, "INIT_METHOD": self.init}

    @property
    def init(self) -> str:
        """Return the init method, for tests that destroy the default group and form another."""
        return f"file://{self.directory}/init_dir/shared_init_file"

    def prepare(self) -> None:
        """Make the folders that torch's own runner makes (initialize_temp_directories)."""
        for name in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(self.directory, name))


def environment(size: int) -> dict[str, str]:
    """Return the variables that torch's tests read when imported, to decide what to skip."""
    return {
        "BACKEND": "gloo",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "INIT_METHOD": "file:///nowhere",
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",  # the command it prints would not work
    }


def _hang(self: Any) -> None:
    """Wait in a barrier to which rank 1 never comes."""
    import torch.distributed

    if self.rank == 1:
        threading.Event().wait()
    torch.distributed.barrier()


def _load() -> tuple[Any, Any]:
    from conformance.loaded import tests

    case = type(CLASS, (tests.TestDistBackend, tests.DistributedTest._DistTestBase), {HANG: _hang})
    unskip(case)
    return tests, case


def list_tests(pipe: Connection) -> None:
    """Send the tests' names, with torch's reason for each that is always skipped."""
    _, case = _load()
    found: dict[str, str | None] = {}
    for name in dir(case):
        if name.startswith("test") and callable(method := getattr(case, name)):
            skipped = getattr(method, "__unittest_skip__", False)
            found[name] = getattr(method, "__unittest_skip_why__", "") if skipped else None
    pipe.send(found)


def skip_codes(pipe: Connection) -> None:
    """Send torch's reasons to skip a test, by the exit status of a rank that skips it."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    pipe.send({skip.exit_code: skip.message for skip in TEST_SKIPS.values()})


def run(pipe: Connection, place: Place, test: str, errors: Connection) -> None:
    """Run one test as one rank, and end as torch's own ranks do: by an exit status.

    ``errors`` gets the text of an exception, as with torch's own runner; ``pipe`` gets the number
    of Gloo's groups that were made.
    """
    os.environ.update(place.environment())
    if place.host is not None:
        place.host.enter()

    from conformance import on_cpu, substitute

    tests, case = _load()
    tests.INIT_METHOD = place.init
    if test in ON_CPU:
        on_cpu.install(tests)
    count = substitute.GlooCount()
    count.install()
    if place.backend == substitute.FASTCOMM:
        substitute.install(count)
        substitute.rename_events(tests)
        _check_first(case, native=place.host is None)
    try:
        case._run(place.rank, test, os.path.join(place.directory, "store"), errors)
    finally:
        sys.stdout.flush()
        pipe.send(count.made)


def _check_first(case: Any, native: bool) -> None:
    """Make each test check first that its default group is fastcomm's."""
    from conformance import substitute

    run_test = case.run_test

    def checked(self: Any, *arguments: Any) -> None:
        substitute.check(native)
        run_test(self, *arguments)

    case.run_test = checked
