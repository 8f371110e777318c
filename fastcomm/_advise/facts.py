"""What a step needs, from some steps of the model as it is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fastcomm._advise.told import Facts
from fastcomm._advise.work import rows_of


class Survey:
    """Watches a model's passes from `begin` to `end`."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._rows = 0
        self._saved: dict[int, int] = {}  # bytes by place in memory, of a pass
        self._most_saved = 0
        self._ready: list[dict[int, float]] = []  # by pass: moments by parameter
        self._handles: list[Any] = []
        self._known = {p.untyped_storage().data_ptr() for p in _tensors(model)}
        self._saving = torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)

    def begin(self) -> None:
        """Begin: before a step."""
        self._handles = [
            self._model.register_forward_pre_hook(self._before, with_kwargs=True),
            *(
                parameter.register_post_accumulate_grad_hook(self._when_ready(number))
                for number, parameter in enumerate(self._model.parameters())
                if parameter.requires_grad
            ),
        ]
        self._saving.__enter__()

    def end(self, passes: int) -> Facts:
        """Return what was seen: after a step, which has so many backward passes."""
        self._saving.__exit__(None, None, None)
        for handle in self._handles:
            handle.remove()
        parameters = list(self._model.parameters())
        return Facts(
            batch=self._rows,
            passes=passes,
            gradients=tuple((_bytes(parameters[n]), at) for n, at in self._in_order()),
            parameter_bytes=sum(map(_bytes, _tensors(self._model))),
            state_bytes=sum(map(_bytes, _state(self._optimizer))),
            saved_bytes=self._most_saved,
            optimizer=type(self._optimizer).__name__,
            threads=torch.get_num_threads(),
            device=parameters[0].device.type,
        )

    def _before(self, _: nn.Module, arguments: Any, options: Mapping[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._rows = rows_of((arguments, options)) or self._rows
            self._saved = {}
            self._ready.append({})

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in self._known:
            self._saved[place] = int(tensor.untyped_storage().nbytes())
            self._most_saved = max(self._most_saved, sum(self._saved.values()))
        return tensor

    def _when_ready(self, number: int) -> Any:
        def ready(_: torch.Tensor) -> None:
            if self._ready:
                self._ready[-1][number] = time.perf_counter()

        return ready

    def _in_order(self) -> list[tuple[int, float]]:
        """Return parameters with the part of the backward pass after which they are ready.

        The pass counts from its first gradient.
        """
        passes = [each for each in self._ready[len(self._ready) // 2 :] if each]
        if not passes:
            return []
        parts: dict[int, list[float]] = {number: [] for number in passes[-1]}
        for each in passes:
            first, last = min(each.values()), max(each.values())
            for number, at in each.items():
                if number in parts:
                    parts[number].append((at - first) / (last - first) if last > first else 1.0)
        found = [(number, statistics.median(values)) for number, values in parts.items()]
        return sorted(found, key=lambda each: each[1])


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _state(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for of_parameter in optimizer.state.values():
        yield from (each for each in of_parameter.values() if isinstance(each, torch.Tensor))


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.nbytes)
