"""Where tests of one process put tensors and replicas: CPU slots, or an accelerator's devices.

The accelerator is a GPU, or with ``pytest --accelerator sim`` the simulated one. A test with the
fixture ``place`` runs once on each; one that is marked ``accelerator`` only there. CPU slots are
one device that occurs several times in a list; an accelerator's devices take turns, where the
machine has several.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sim
import torch
from support.tree import same_bits

if TYPE_CHECKING:
    from hypothesis import settings


@functools.cache
def kind() -> str | None:
    """Return the accelerator's device type; None without one. Needs a configured pytest."""
    if sim.loaded():
        return "sim"
    return "cuda" if torch.cuda.is_available() else None


def module() -> Any:
    """Return ``torch.cuda``, or its counterpart in the simulation."""
    return torch.get_device_module(kind())


def count() -> int:
    """Return how many devices the accelerator has; 0 without one."""
    return 0 if kind() is None else int(module().device_count())


def join(name: str | None) -> None:
    """In a rank, take the accelerator of the test that started it, by its `kind`."""
    if name == "sim":
        sim.load()


def keep_busy(stream: Any, milliseconds: float) -> None:
    """Keep a stream idle for about that long, so that what it is given next begins late."""
    with module().stream(stream):
        if sim.loaded():
            torch.sim.sleep(int(1000 * milliseconds))
        else:
            torch.cuda._sleep(int(2e6 * milliseconds))  # cycles


@contextlib.contextmanager
def graph(stream: Any) -> Iterator[Any]:
    """Capture what is given to a stream into a graph, which has ``replay()``."""
    if sim.loaded():
        with torch.sim.graph(stream) as captured:
            yield captured
        return
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        yield captured


def examples(many: int) -> settings:
    """Return how many examples a property is tried with: fewer where operators take a millisecond.

    ``place`` is the same in all of them.
    """
    from hypothesis import HealthCheck, settings  # which not every user of places needs

    few = max(10, many // 4)
    return settings(
        max_examples=few if sim.loaded() else many,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def laid_out(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a CPU tensor on a device: with its strides, offset and gaps, which ``to`` drops."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = tensor.as_strided((size,), (1,), 0).to(device)
    return whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


@dataclass(frozen=True)
class Place:
    """One kind of place: "cpu", or "accelerator"."""

    name: str

    @property
    def kind(self) -> str:
        """The device type."""
        found = "cpu" if self.name == "cpu" else kind()
        assert found is not None, "no accelerator here"
        return found

    @property
    def first(self) -> torch.device:
        """The device that everything begins on."""
        return self.devices(1)[0]

    def devices(self, many: int) -> list[torch.device]:
        """Return ``many`` devices, in order; where there are fewer, they are repeated."""
        if self.name == "cpu":
            return [torch.device("cpu")] * many
        return [torch.device(self.kind, i % count()) for i in range(many)]

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the first device."""
        return tensor.to(self.first)

    def check_alike(self, found: torch.Tensor, wanted: torch.Tensor, loose: bool = False) -> None:
        """Compare what operators of torch computed here with the same on the CPU.

        To the bit, except on a GPU: it adds the terms of products in another order than a CPU does.

        Args:
            loose: 16 bits were between, which may round a last bit's difference to another
                neighbour.

        Raises:
            AssertionError: they are not alike.
        """
        found, wanted = found.detach().cpu(), wanted.detach().cpu()
        if self.kind == "cuda":
            double = found.dtype in (torch.float64, torch.complex128)
            rtol, atol = (2e-2, 2e-3) if loose else (1e-9, 1e-10) if double else (1e-4, 1e-5)
            torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)
        else:
            assert same_bits(found, wanted)

    def synchronize(self) -> None:
        """Wait for all devices."""
        for index in range(count() if self.name != "cpu" else 0):
            module().synchronize(index)


CPU = Place("cpu")
ACCELERATOR = Place("accelerator")
