"""Start of a script, as by a user, on this host or on several."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from support.namespaces import Host
from support.patience import ENDS


def torchrun(script: Path, *arguments: object, ranks: int) -> str:
    """Run a script under torchrun, or without it for 0 ranks, and return what it prints."""
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    ended = subprocess.run(
        [sys.executable, *(words if ranks else []), str(script), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=ENDS,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# A host's command, and the environment variables that it has besides.
Start = tuple[Host, list[str], Mapping[str, str]]


def on_hosts(starts: Iterable[Start]) -> str:
    """Run a command on each host, one beside the other, and return all that they print.

    Raises:
        AssertionError: one failed.
    """
    with contextlib.ExitStack() as stack:
        started = []
        for host, words, variables in starts:
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
            process = subprocess.Popen(
                host.command(sys.executable, *words), env=environment, stdout=output, stderr=output
            )
            stack.callback(_end, process)
            started.append((process, output))
        deadline = time.monotonic() + ENDS
        for process, _ in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        statuses = [process.poll() for process, _ in started]
        for _, output in started:
            output.seek(0)
        said = "".join(output.read() for _, output in started)
        assert statuses == [0] * len(statuses), f"{statuses}\n{said}"
        return said


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # torchrun ends its ranks then
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(40)  # torchrun gives them 30 s
    process.kill()
    process.wait()


def torchrun_on(hosts: list[Host], port: int, *words: str, ranks: int) -> str:
    """Run a script under one torchrun on each host, which meet at the first; as `on_hosts`.

    The names of these hosts do not tell them apart, as those of others would.
    """
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={hosts[0].address}:{port}"]
    several = [f"--nnodes={len(hosts)}", f"--nproc-per-node={ranks}", *meeting]
    return on_hosts(
        (host, ["-m", "torch.distributed.run", *several, f"--local-addr={host.address}",
                f"--rdzv-conf=is_host={int(host is hosts[0])}", *words], {})
        for host in hosts
    )  # fmt: skip
