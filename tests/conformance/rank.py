"""What one rank's process does, and what a process that lists torch's tests does."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from conformance.forced import ON_CPU, unskip

# The name from torch's own file for Gloo.
CLASS = "TestDistBackendWithSpawn"
# A test of the runner, which runs where --only names it.
HANG = "test_that_hangs"


@dataclass(frozen=True)
class Place:
    """Where a rank of a test runs."""

    rank: int
    size: int
    backend: str
    directory: str

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
        """Make what torch's own runner makes (initialize_temp_directories)."""
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
    """Send torch's reasons by the exit status with which a rank reports them."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    pipe.send({skip.exit_code: skip.message for skip in TEST_SKIPS.values()})


def run(pipe: Connection, place: Place, test: str, errors: Connection) -> None:
    """Run one test as one rank, and end as torch's own ranks do: by an exit status.

    ``errors`` is torch's pipe, for the text of an exception; the other gets how many groups of Gloo
    were made.
    """
    os.environ.update(place.environment())

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
        _check_first(case)
    try:
        case._run(place.rank, test, os.path.join(place.directory, "store"), errors)
    finally:
        sys.stdout.flush()
        pipe.send(count.made)


def _check_first(case: Any) -> None:
    """Check before the test that the group that torch has formed is the one meant."""
    from conformance import substitute

    run_test = case.run_test

    def checked(self: Any, *arguments: Any) -> None:
        substitute.check()
        run_test(self, *arguments)

    case.run_test = checked
