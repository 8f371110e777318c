"""Workers of one `Spec`, as the one that asks them sees them."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from fastcomm._advise import worker
from fastcomm._advise.told import Facts, Round, Spec
from fastcomm._launch import errors, pickles, processes
from fastcomm._machine import division, topology

_PAUSE_S = 0.2  # between looks at who has failed
_END_S = 5.0  # for workers to end by themselves


class AdviseError(RuntimeError):
    """There is no advice; the message says why.

    Attributes:
        reason: the same in one line.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class StoppedError(AdviseError):
    """The training loop ended before enough of its steps were seen.

    Attributes:
        steps: how many there were.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(
            f"the training ended by itself after {steps} steps, which are too few to measure: let "
            "it run for some hundreds, by more epochs or more data"
            if steps
            else "the script has no training loop: nothing called backward() and an optimizer's "
            "step() for parameters of a module"
        )
        self.steps = steps


class Crew:
    """Workers that wait to be asked, until this is left. Where one fails, asking raises."""

    def __init__(self, spec: Spec, train: Callable[[Spec], None]) -> None:
        self.spec = spec
        self._train = train
        self._inner = contextlib.ExitStack()
        self._links: list[Connection] = []
        self._outcome: processes.Outcome | None = None
        self.ranks: list[processes.Rank] = []  # once they have been started

    def __enter__(self) -> Crew:
        with (
            tempfile.TemporaryDirectory(prefix="fastcomm-") as folder,
            socket.socket(socket.AF_UNIX) as server,
            contextlib.ExitStack() as inner,
        ):
            address = str(Path(folder) / "advise")
            server.bind(address)
            server.listen(self.spec.ranks)
            self._start(inner, address)
            self._links = self._accept(inner, server)
            self._inner = inner.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            for link in self._links:
                with contextlib.suppress(OSError):
                    link.send(("end",))
            self._end.wait(_END_S)
        self._inner.close()

    def facts(self, steps: int) -> Facts:
        """Return what a step needs."""
        found: list[Facts] = self._ask("facts", steps)
        return found[0]

    def round(self, way: str, steps: int) -> list[Round]:
        """Return what some steps took, of each rank."""
        return self._ask("round", way, steps)

    def apart(self, steps: int) -> Round:
        """Return what some steps of the first worker took while the others wait."""
        found: Round = self._ask("apart", steps, among=self._links[:1])[0]
        return found

    def beside(self, size: int, messages: int, steps: int) -> list[Round]:
        """Return what some steps took beside messages of a size, of each rank."""
        return self._ask("beside", size, messages, steps)

    def costs(self, sizes: Sequence[int], how: str) -> dict[int, float]:
        """Return seconds by bytes; see `costs.times_of`."""
        found: dict[int, float] = self._ask("costs", list(sizes), how)[0]
        return found

    def moved_by_slots(self, repeats: int) -> float:
        """Return the seconds in which DataParallel moves parameters and gradients."""
        return float(self._ask("slots", repeats)[0])

    def _ask(self, *cue: Any, among: Sequence[Connection] | None = None) -> list[Any]:
        links = self._links if among is None else among
        for link in links:
            with contextlib.suppress(OSError):  # it has ended, and has said why
                link.send(cue)
        answers: dict[int, Any] = {}
        while len(answers) < len(links):
            ready = wait([link for number, link in enumerate(links) if number not in answers])
            for number, link in enumerate(links):
                if link in ready:
                    answers[number] = self._receive(link)
        return [answers[number] for number in range(len(links))]

    def _receive(self, link: Connection) -> Any:
        try:
            what, value = link.recv()
        except (EOFError, OSError):
            self._fail()
        if what == "stopped":
            raise StoppedError(value)
        if what == "failed":
            self._raise(value)
        return value

    def _start(self, inner: contextlib.ExitStack, address: str) -> None:
        """Start the processes in a thread of their own, which ends with the last of them."""
        failed: list[BaseException] = []
        shares = division.divide(topology.cpus(), self.spec.ranks, topology.quota())
        self._end, stop = threading.Event(), threading.Event()
        task = processes.Task(
            words=["fastcomm advise"],
            function=pickles.dumps_function(worker.work, (self._train, address, self.spec)),
        )

        def watch() -> None:
            try:
                with processes.started(task, shares, bind=False, environment={}) as ranks:
                    self.ranks = ranks
                    self._outcome = processes.watch(ranks, stop)
            except BaseException as error:
                failed.append(error)
            finally:
                self._end.set()

        thread = threading.Thread(target=watch, name="fastcomm-advise")
        thread.start()
        inner.callback(thread.join)
        inner.callback(stop.set)
        self._failed = failed

    def _accept(self, inner: contextlib.ExitStack, server: socket.socket) -> list[Connection]:
        found: dict[int, Connection] = {}
        server.settimeout(_PAUSE_S)
        while len(found) < self.spec.ranks:
            try:
                accepted, _ = server.accept()
            except TimeoutError:
                if self._end.is_set():
                    self._fail()
                continue
            accepted.setblocking(True)
            link = inner.enter_context(Connection(accepted.detach()))
            found[link.recv()] = link
        return [found[number] for number in range(self.spec.ranks)]

    def _fail(self) -> NoReturn:
        """Raise what has become of the processes."""
        self._end.wait()
        if self._failed:
            raise self._failed[0]
        assert self._outcome is not None
        if not self._outcome.failures:
            raise StoppedError(0)
        first = errors.in_order(self._outcome.failures)[0]
        self._raise(first.text)

    def _raise(self, text: str) -> NoReturn:
        """Raise a failure of the training."""
        message = f"the training failed, with {self.spec}:\n{text}{_hint(text)}"
        raise AdviseError(message, text.rpartition("\n")[2])


def _hint(text: str) -> str:
    """Return what to do about a failure, if its text tells."""
    if any(word in text for word in ("SIGKILL", "MemoryError", "OutOfMemory", "out of memory")):
        return (
            "\nIts memory may not have sufficed: several copies of the model are there at once. "
            "Try a smaller batch, or fewer ranks."
        )
    return ""
