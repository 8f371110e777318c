"""Ranks that ``mpiexec`` starts, for `fastcomm._measure.launch`: MPI serves no others.

Each connects to the parent, says which rank it is, and is then as any other: what it is to do comes
over the connection, and so does what it returns.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from fastcomm._measure.launch import StartError

_KEY = "FASTCOMM_BENCH_KEY"  # taken out of the environment before fastcomm sees it
_STARTS_S = 60.0
_ENDS_S = 10.0


def missing() -> str:
    """Return what is missing for it, or nothing."""
    import importlib.util

    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return "" if _mpiexec() else "there is no mpiexec"


def _mpiexec() -> str | None:
    return shutil.which("mpiexec") or shutil.which("mpiexec", path=os.path.dirname(sys.executable))


class StartedRank:
    """One of them, as a `fastcomm._measure.launch.Process`."""

    def __init__(self, mpiexec: subprocess.Popen[bytes]) -> None:
        self._mpiexec = mpiexec
        self.exitcode: int | None = None

    def join(self, timeout: float | None = None) -> None:
        """Wait until all of them have ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.exitcode = self._mpiexec.wait(timeout)

    def is_alive(self) -> bool:
        """Tell whether any of them runs."""
        return self._mpiexec.poll() is None

    def kill(self) -> None:
        """End all of them: ``mpiexec`` ends its ranks, unless it does not end itself."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.is_alive():  # whose number may be somebody else's by now
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._mpiexec.pid, number)
            self.join(_ENDS_S)


def start(size: int) -> tuple[list[StartedRank], list[Connection]]:
    """Start so many ranks, and return them and what connects them, by rank.

    Raises:
        StartError: they do not all connect.
    """
    folder = tempfile.mkdtemp(prefix="fastcomm-bench-")
    try:
        key = secrets.token_hex(16)
        with Listener(str(Path(folder, "ranks")), "AF_UNIX", size, key.encode()) as listener:
            rank = [sys.executable, "-c", f"from {__name__} import main; main()"]
            command = [str(_mpiexec()), "-n", str(size), *rank]
            # They find what this process finds, as ranks do that it starts itself.
            environment = {**os.environ, _KEY: key, "PYTHONPATH": os.pathsep.join(sys.path)}
            environment.setdefault("I_MPI_FABRICS", "shm")
            for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
                environment.setdefault(name, "1")
            # More ranks than cores are measured, too; Open MPI has to be told, in two ways.
            environment.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
            environment.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
            process = subprocess.Popen(
                [*command, listener.address], env=environment, start_new_session=True
            )
            timer = threading.Timer(_STARTS_S, process.kill)
            words = (process, listener.address, key)
            threading.Thread(target=_tell, args=words, daemon=True).start()
            timer.start()
            by_rank: dict[int, Connection] = {}
            try:
                while len(by_rank) < size:
                    connection: Any = listener.accept()
                    number = connection.recv()
                    if number < 0:
                        raise StartError(f"mpiexec ended with {process.returncode}, see above")
                    by_rank[number] = connection
            except BaseException:
                StartedRank(process).kill()
                raise
            finally:
                timer.cancel()
        return [StartedRank(process) for _ in range(size)], [by_rank[r] for r in range(size)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(process: subprocess.Popen[bytes], address: Any, key: str) -> None:
    """Say that ``mpiexec`` has ended to who still waits for its ranks."""
    process.wait()
    with contextlib.suppress(OSError), Client(address, "AF_UNIX", key.encode()) as connection:
        connection.send(-1)


def main() -> None:
    """Be a rank."""
    key = os.environ.pop(_KEY)
    from mpi4py import MPI

    from fastcomm._measure.rank import Rank, run_function

    world = MPI.COMM_WORLD
    connection: Any = Client(sys.argv[1], "AF_UNIX", key.encode())
    connection.send(world.rank)
    function, settings, arguments = connection.recv()
    run_function(function, Rank(world.rank, world.size, connection), settings, arguments)
    MPI.Finalize()
