"""An optimizer whose state is divided among the ranks (ZeRO, stage 1)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from fastcomm._distributed import backend as _backend
from fastcomm._distributed.copies import OfGroup
from fastcomm._gradients.fused import FusedResult, check_max_norm
from fastcomm._gradients.shards import fused_reduce_scatter_, gather_shards_, row_offsets
from fastcomm.optim._elementwise import refuse_others

__all__ = ["ShardedOptimizer"]


# Attributes that a copy keeps, besides the group.
_COPIED = (
    *("defaults", "state", "param_groups", "optimizer"),
    *("average", "scale", "comm_dtype", "max_norm", "norm_type", "skip_nonfinite"),
    *("_rank", "_size", "_rows", "_offsets", "_unwrapped"),
)


class ShardedOptimizer(OfGroup, torch.optim.Optimizer):
    """Reduce gradients, step on this rank's share of every parameter, and gather the parameters.

    A rank keeps state for its rows of each parameter (its first dimension, cut as DTensor's
    ``Shard(0)`` is), so for about 1/n of the elements. For optimizers that treat every element by
    itself, such as SGD and Adam, a step has the bits of `fused_all_reduce_`, `clip_grad_norm_` and
    the optimizer itself on whole parameters (except with ``fused=True``: torch's fused kernels
    round the last few elements of a tensor in another way). The model is not wrapped::

        model = Model()
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        loss(model(x)).backward()
        optimizer.step()  # reduces, too
        optimizer.zero_grad()

    All ranks construct it with equal parameters, which are set to the first rank's, and step with
    gradients of the same parameters. After a step the gradients of this rank's rows are the reduced
    ones; the rest are unspecified. Every rank has the state of parameters without dimensions.

    Args:
        params: as for any optimizer: parameters, groups, or named ones; all on the CPU or all on
            this rank's device of the group; contiguous or channels_last.
        optimizer_class: of ``torch.optim``, or like it.
        process_group: None is the default one. Native where its backend is fastcomm and the ranks
            share memory.
        average: divide gradients by the number of ranks.
        scale: a factor for the gradients. It may be set between steps, for a loss scale that
            changes; `fastcomm.amp.GradScaler` needs no such change.
        comm_dtype: ``torch.bfloat16`` or ``torch.float16``: how gradients of fp32 travel.
        max_norm: clip gradients to it.
        norm_type: 1, 2, ``inf`` or None.
        skip_nonfinite: do not step where a gradient is infinite or NaN. On a device each step then
            waits for the device.
        elementwise: True states that an ``optimizer_class`` that is not torch's own, or a subclass
            of one, treats every element by itself, whatever the rest of the tensor is.
        defaults: the optimizer's own arguments.

    Attributes:
        result: the `FusedResult` of the last step: its norm is that before clipping.
        optimizer: the one that steps, on this rank's rows.

    Raises:
        TypeError: an optimizer instead of a class.
        ValueError: a class that is not known to treat every element by itself; a parameter
            elsewhere, with a layout that cannot be divided by rows, or of a model that
            DistributedDataParallel reduces; ``max_norm`` without a norm, or negative.
    """

    # So torch.amp.GradScaler leaves the decision about a step to this class, which refuses that
    # scaler.
    _step_supports_amp_scaling = True
    found_inf: torch.Tensor  # set by torch.amp.GradScaler, for the duration of a step
    grad_scale: torch.Tensor | None

    def __init__(
        self,
        params: Any,
        optimizer_class: Callable[..., torch.optim.Optimizer],
        process_group: dist.ProcessGroup | None = None,
        *,
        average: bool = True,
        scale: float = 1.0,
        comm_dtype: torch.dtype | None = None,
        max_norm: float | None = None,
        norm_type: float | None = 2.0,
        skip_nonfinite: bool = False,
        elementwise: bool = False,
        **defaults: Any,
    ) -> None:
        refuse_others(optimizer_class, elementwise)
        check_max_norm(max_norm, norm_type)
        self.process_group = process_group
        self.average = average
        self.scale = scale
        self.comm_dtype = comm_dtype
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.skip_nonfinite = skip_nonfinite
        self.result: FusedResult | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self._rank = dist.get_rank(process_group)
        self._size = dist.get_world_size(process_group)
        self._rows: dict[torch.Tensor, torch.Tensor] = {}  # by parameter: this rank's
        self._offsets: dict[torch.Tensor, list[int]] = {}
        self._mesh: Any = None
        super().__init__(params, defaults)
        _refuse_wrapped(self._parameters())
        groups = [self._own_group(group) for group in self.param_groups]
        self.optimizer = optimizer_class(groups, **defaults)
        self.defaults = self.optimizer.defaults
        self._take_settings()

    def _copied(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _COPIED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        OfGroup.__setstate__(self, {})
        torch.optim.Optimizer.__setstate__(self, state)
        self.result = None
        self._mesh = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as for any optimizer; collective.

        Raises:
            ValueError: a parameter elsewhere, with a layout that cannot be divided by rows, or of a
                model that DistributedDataParallel reduces. The optimizer is as before.
        """
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        try:
            self._check(added["params"])
            for parameter in added["params"]:
                dist.broadcast(parameter.detach(), group=self.process_group, group_src=0)
            if self.optimizer is not None:
                self.optimizer.add_param_group(self._own_group(added))
        except BaseException:
            self.param_groups.pop()
            for parameter in added["params"]:
                self._offsets.pop(parameter, None)
                self._rows.pop(parameter, None)
            raise
        self._unwrapped = False  # the model may be wrapped later
        if self.optimizer is not None:
            self._take_settings()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients, step, and gather; collective.

        Raises:
            CollectiveMismatchError: the ranks have gradients of different parameters. Nothing has
                been changed.
            FastcommError: as for any collective. Parameters may or may not be those from before the
                step.
            RuntimeError: called by ``torch.amp.GradScaler``.

        On devices nothing waits for the reduction. If it fails, gradients become NaN, and so do
        this rank's rows and state; the error is raised by the end of this step or by the next call
        of the group. With ``skip_nonfinite`` the error is raised before anything is changed.
        """
        if hasattr(self, "found_inf"):
            del self.found_inf, self.grad_scale
            raise RuntimeError(
                "torch.amp.GradScaler looks at this rank's gradients before they are reduced, so "
                "ranks would skip steps apart from each other: use fastcomm.amp.GradScaler, which "
                "has the same arguments"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step(self.scale, self.skip_nonfinite)
        return loss

    def step_unscaled(self, loss_scale: float) -> torch.Tensor:
        """Step with gradients of a scaled loss, unless one is infinite or NaN; collective.

        `fastcomm.amp.GradScaler` calls it. Raises what `step` does.

        Args:
            loss_scale: the same on all ranks.

        Returns:
            0-d, of fp32: 1 where the step was skipped, on all ranks, else 0.
        """
        self._step(self.scale / loss_scale, skip_nonfinite=True)
        assert self.result is not None
        return self.result.found_inf

    def _step(self, scale: float, skip_nonfinite: bool) -> None:
        assert self.optimizer is not None
        if not self._unwrapped:
            _refuse_wrapped(self._parameters())
            self._unwrapped = True
        with torch.no_grad():
            given = self._parameters()
            stepped = [p for p in given if p.grad is not None]
            self._reduce(stepped, scale)
            if skip_nonfinite and self.result is not None and self.result.found_inf != 0:
                self._raise_failure()
                return
            for parameter in given:
                grad = None if parameter.grad is None else self._own(parameter.grad)
                own = self._rows[parameter]
                if own is not parameter:
                    own.data = self._own(parameter.detach())  # it may have been moved
                    own.grad = grad
            self._clip(stepped)
            self._give_settings()
            self.optimizer.step()
            if stepped:
                offsets = [self._offsets[p] for p in stepped]
                gather_shards_(stepped, offsets, self.process_group)
        self._take_state()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or set them to zero."""
        super().zero_grad(set_to_none)
        for own in self._rows.values():
            own.grad = None if set_to_none else own.grad

    def state_dict(self) -> dict[str, Any]:
        """Return the state as any optimizer does, with divided tensors as DTensors over the group.

        ``torch.distributed.checkpoint`` saves these, and loads them for another number of ranks.
        """
        packed: dict[str, Any] = super().state_dict()
        parameters = dict(enumerate(self._parameters()))
        packed["state"] = {
            k: {name: self._whole(parameters[k], value) for name, value in state.items()}
            for k, state in packed["state"].items()
        }
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, or the state of an optimizer that is not divided.

        Args:
            state_dict: tensors of a parameter's shape, DTensors of it, or this rank's rows.
        """
        assert self.optimizer is not None
        # Keys are numbers, or names if torch.distributed.checkpoint has handled them.
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        parameters = dict(zip(keys, self._parameters(), strict=True))
        own = {
            k: {name: self._part(parameters[k], value) for name, value in state.items()}
            for k, state in state_dict["state"].items()
        }
        self.optimizer.load_state_dict({**state_dict, "state": own})
        for group, settings in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            group.update({k: v for k, v in settings.items() if k != "params"})
        self.state.clear()
        self._take_state()

    def _check(self, added: Sequence[torch.Tensor]) -> None:
        """Refuse parameters that cannot be divided by rows, or are reduced by others."""
        for parameter in added:
            first = next(iter(self._offsets), parameter).device
            if parameter.is_meta:
                raise ValueError("a parameter is on the meta device: it has no memory yet")
            if parameter.device != first:
                raise ValueError(
                    f"a parameter is on {parameter.device}, not on one device with all others"
                )
            self._offsets[parameter] = row_offsets(parameter, self._size)
        if self.optimizer is not None:
            _refuse_wrapped(added)

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _reduce(self, stepped: list[torch.Tensor], scale: float) -> None:
        grads = []
        for parameter in stepped:
            grad = parameter.grad
            assert grad is not None
            if grad.stride() != parameter.stride():
                grad = parameter.grad = torch.empty_like(parameter).copy_(grad)
            grads.append(grad)
        offsets = [self._offsets[parameter] for parameter in stepped]
        given = self._parameters()[0]
        # An empty tensor joins the other ranks on the device, where they may wait.
        if not stepped and not given.is_cpu:
            grads, offsets = [given.new_zeros(0)], [[]]
        self.result = fused_reduce_scatter_(
            grads,
            offsets,
            self.process_group,
            average=self.average,
            scale=scale,
            comm_dtype=self.comm_dtype,
            norm_type=self.norm_type,
        )

    def _raise_failure(self) -> None:
        """Raise what made gradients on devices NaN, if it was a failure of the group."""
        backend = _backend.backend_of(self.process_group)
        if backend is not None:
            backend.raise_failure("fused_reduce_scatter")

    def _clip(self, stepped: list[torch.Tensor]) -> None:
        total = self.result.total_norm if self.result is not None else None
        if self.max_norm is not None and total is not None:
            rows = [self._rows[parameter] for parameter in stepped]
            torch.nn.utils.clip_grads_with_norm_(rows, self.max_norm, total)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of a tensor, as a view."""
        if tensor.dim() == 0:
            return tensor
        each = -(-tensor.size(0) // self._size)
        first = min(self._rank * each, tensor.size(0))
        return tensor[first : min(first + each, tensor.size(0))]

    def _own_group(self, group: dict[str, Any]) -> dict[str, Any]:
        for p in group["params"]:
            self._rows[p] = p if p.dim() == 0 else torch.nn.Parameter(self._own(p.detach()))
        return {**group, "params": [self._rows[p] for p in group["params"]]}

    def _give_settings(self) -> None:
        """Let the optimizer that steps have what schedulers have set here."""
        assert self.optimizer is not None
        for group, own in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            own.update({k: v for k, v in group.items() if k != "params"})

    def _take_settings(self) -> None:
        """Show in the groups what the optimizer that steps has set by default."""
        assert self.optimizer is not None
        for group, own in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            for key, value in own.items():
                group.setdefault(key, value)

    def _take_state(self) -> None:
        """Show the state of the rows as that of their parameters: the same dictionaries."""
        assert self.optimizer is not None
        for parameter, own in self._rows.items():
            if own in self.optimizer.state:
                self.state[parameter] = self.optimizer.state[own]

    def _divided(self, parameter: torch.Tensor) -> bool:
        return self._rows[parameter] is not parameter

    def _whole(self, parameter: torch.Tensor, value: Any) -> Any:
        """Return a divided tensor of the state as a DTensor, any other value unchanged."""
        from torch.distributed.tensor import DeviceMesh, DTensor, Shard

        own = self._rows[parameter]
        if not isinstance(value, torch.Tensor) or not self._divided(parameter):
            return value
        if value.shape != own.shape:
            return value  # a step count
        if self._mesh is None:
            group = self.process_group or dist.distributed_c10d._get_default_group()
            self._mesh = DeviceMesh.from_group(group, parameter.device.type)
        return DTensor.from_local(
            value,
            self._mesh,
            [Shard(0)],
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    def _part(self, parameter: torch.Tensor, value: Any) -> Any:
        """Return this rank's rows of a value of a loaded state, or the value if not divided."""
        from torch.distributed.tensor import DTensor, Shard

        if isinstance(value, DTensor):
            # Gathering is collective, so all ranks must decide alike.
            mesh = value.device_mesh
            same = mesh.mesh.tolist() == self._ranks() and value.placements == (Shard(0),)
            value = value.to_local() if same else value.full_tensor()
        if not isinstance(value, torch.Tensor) or not self._divided(parameter):
            return value
        own = self._rows[parameter]
        if value.shape == parameter.shape and value.shape != own.shape:
            value = self._own(value)
        return value.clone()  # a view would keep the whole tensor alive

    def _ranks(self) -> list[int]:
        """Return the global ranks of the group."""
        ranks: list[int] = dist.get_process_group_ranks(self.process_group or dist.group.WORLD)
        return ranks


def _refuse_wrapped(parameters: Iterable[torch.Tensor]) -> None:
    """Raise ValueError where a DistributedDataParallel reduces the gradients, too.

    Parameters do not show that, so this searches all objects, which takes tens of milliseconds.
    """
    ddp = torch.nn.parallel.DistributedDataParallel
    mine = {id(parameter) for parameter in parameters}
    everything = gc.get_objects()
    kinds = {kind for kind in set(map(type, everything)) if issubclass(kind, ddp)}
    for found in everything if kinds else ():
        if type(found) in kinds and any(id(p) in mine for p in found.parameters()):
            raise ValueError(
                "the model is wrapped in DistributedDataParallel, which reduces its gradients: "
                "they would be reduced twice. Give ShardedOptimizer the parameters of a plain model"
            )
