"""BatchNorm over the whole batch, while its parts are in the replicas of one process.

Replicas run in threads. In every BatchNorm of a training pass they meet: each brings the mean and
the variance of its part, the last to come combines them in the order of the replicas, and all go on
with copies of the result. All this is made of differentiable operations, so backward needs no more.
The copies' gradients are summed in the order of the tree: no bit depends on who came last.

A replica that has ended, or is in another BatchNorm, will not come: then all of them raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from fastcomm._devices import streams as _streams
from fastcomm.nn.parallel._compile import untraced
from fastcomm.nn.parallel._functions import Broadcast
from fastcomm.nn.parallel._members import modules_of

__all__ = ["Party", "synchronize"]


class _Moments(NamedTuple):
    size: int  # elements of one channel
    mean: torch.Tensor
    variance: torch.Tensor  # biased
    stream: torch.Stream | None  # that computes them; None on the CPU


class Party:
    """The replicas of one forward pass, by number. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._ended = [False] * count
        self._at: list[tuple[int, int] | None] = [None] * count  # where a replica waits
        self._brought: dict[tuple[int, int], dict[int, _Moments]] = {}
        self._combined: dict[tuple[int, int], list[_Moments]] = {}  # for each replica
        self._visits: dict[tuple[int, int], int] = {}  # by replica and place
        self._raised: dict[int, str] = {}
        self._modules: list[Module] = []
        self._failure: str | None = None

    def watched(self, replica: int, work: Callable[..., Any]) -> Watched:
        """Return ``work``, made to tell the others of its end."""
        return Watched(self, replica, work)

    def end(self, replica: int, error: BaseException | None = None) -> None:
        """Note that a replica will come to no further layer."""
        with self._changed:
            self._ended[replica] = True
            if error is not None:
                self._raised[replica] = repr(error)
            self._look()

    def close(self) -> None:
        """Let go of everything: the moments hold the graph, the modules hold this party."""
        for module in self._modules:
            module.__dict__.pop("forward", None)
        self._modules.clear()
        self._brought.clear()
        self._combined.clear()

    def lead(self, module: Module, forward: Callable[..., Any]) -> None:
        """Let a module run ``forward`` until `close`: it is found before the class's own."""
        module.__dict__["forward"] = forward
        self._modules.append(module)

    def meet(self, replica: int, place: int, moments: _Moments) -> _Moments:
        """Return the moments of all parts together, on the replica's device.

        ``place`` is the BatchNorm's number.

        Raises:
            RuntimeError: another replica will not come.
        """
        with self._changed:
            visit = self._visits.get((replica, place), 0)
            self._visits[replica, place] = visit + 1
            here = (place, visit)
            self._brought.setdefault(here, {})[replica] = moments
            self._at[replica] = here
            self._look()
            while here not in self._combined and self._failure is None:
                self._changed.wait()
            self._at[replica] = None
            if here not in self._combined:
                raise RuntimeError(self._failure)
            return self._combined[here][replica]

    def _look(self) -> None:
        """See whether somebody can go on, or nobody can."""
        for here, brought in self._brought.items():
            if here not in self._combined and len(brought) == len(self._ended):
                self._combined[here] = _combine([brought[i] for i in range(len(brought))])
        waiting = {here for here in self._at if here is not None and here not in self._combined}
        stuck = all(
            ended or (here is not None and here not in self._combined)
            for ended, here in zip(self._ended, self._at, strict=True)
        )
        if waiting and stuck and self._failure is None:
            ended = [i for i, over in enumerate(self._ended) if over]
            what = f"replicas {ended} have ended" if ended else "they are in different ones"
            for replica, error in self._raised.items():
                what += f", replica {replica} by {error}"
            self._failure = (
                f"synchronised BatchNorm: not all replicas come to the same layer ({what}). "
                "Every replica must run the same layers in the same order"
            )
        self._changed.notify_all()


class Watched:
    """A replica's work, of whose end the others hear, however it comes."""

    _fastcomm_untraced = True

    def __init__(self, party: Party, replica: int, work: Callable[..., Any]) -> None:
        self._party, self._replica, self._work = party, replica, work

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        try:
            result = self._work(*arguments, **options)
        except BaseException as error:
            self._party.end(self._replica, error)
            raise
        self._party.end(self._replica)
        return result

    def cancel(self) -> None:
        """Note that the work will not be called."""
        self._party.end(self._replica)


def _combine(parts: Sequence[_Moments]) -> list[_Moments]:
    """Combine moments as Chan, Golub and LeVeque (1979) do; return a copy for each part."""
    for part in parts:
        _streams.receive(part.stream, part.mean, part.variance)
    device = parts[0].mean.device
    count = sum(part.size for part in parts)
    means = torch.stack([part.mean.to(device) for part in parts])
    variances = torch.stack([part.variance.to(device) for part in parts])
    weights = torch.tensor([part.size / count for part in parts], dtype=means.dtype, device=device)
    weights = weights.view(-1, 1)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    devices = [part.mean.device for part in parts]
    copies = Broadcast.apply(devices, mean, variance)
    return [
        _Moments(count, copies[2 * i], copies[2 * i + 1], _streams.current(place))
        for i, place in enumerate(devices)
    ]


def synchronize(replicas: Sequence[Module]) -> Party:
    """Make the BatchNorms of these replicas meet in their next forward pass."""
    party = Party(len(replicas))
    for number, replica in enumerate(replicas):
        for place, module in enumerate(modules_of(replica)):
            if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
                if type(module).forward is not _BatchNorm.forward:
                    raise TypeError(
                        f"{type(module).__name__} has a forward of its own: sync_batchnorm would "
                        "leave it out. Use torch's BatchNorm, and do the rest in a module after it"
                    )
                party.lead(module, partial(_forward, module, party, number, place))
    return party


@untraced
def _forward(
    module: _BatchNorm, party: Party, replica: int, place: int, x: torch.Tensor
) -> torch.Tensor:
    module._check_input_dim(x)
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    rest = [dim for dim in range(x.dim()) if dim != 1]
    variance, mean = torch.var_mean(wide, rest, correction=0)
    own = _Moments(x.numel() // x.size(1), mean, variance, _streams.current(x.device))
    moments = party.meet(replica, place, own)
    _streams.receive(moments.stream, moments.mean, moments.variance)
    mean, variance = moments.mean, moments.variance
    if module.training and module.running_mean is not None:
        _track(module, moments.size, mean, variance)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    scale = torch.rsqrt(variance + module.eps)
    if module.weight is not None:
        scale = scale * module.weight
    out = (wide - mean.view(shape)) * scale.view(shape)
    if module.bias is not None:
        out = out + module.bias.view(shape)
    return out.to(x.dtype)


def _track(module: _BatchNorm, count: int, mean: torch.Tensor, variance: torch.Tensor) -> None:
    """Update running statistics as torch's BatchNorm does."""
    assert module.running_mean is not None and module.running_var is not None
    with torch.no_grad():
        factor = 0.0 if module.momentum is None else module.momentum
        if module.num_batches_tracked is not None:
            module.num_batches_tracked.add_(1)
            if module.momentum is None:
                factor = 1.0 / float(module.num_batches_tracked)
        module.running_mean.lerp_(mean.to(module.running_mean.dtype), factor)
        unbiased = variance * (count / max(count - 1, 1))
        module.running_var.lerp_(unbiased.to(module.running_var.dtype), factor)
