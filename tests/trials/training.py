"""Random training under DistributedDataParallel over fastcomm, beside the same over Gloo.

With two ranks all bits are Gloo's. With more, Gloo moves the gradients, and they are summed here in
the documented order. Everything about a trial follows from its number. One that fails is played
again, and alone, by::

    PYTHONPATH=tests python -m trials.training --first 17 --count 1
"""

from __future__ import annotations

import contextlib
import random
import traceback
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from support.reductions import reduced
from support.tree import same_bits
from torch import nn
from trials.launch import GROUPS, Played, Trials, command
from trials.models import WIDTH, Model, Plan, draw_plan, loss_of

import fastcomm

OPTIMIZERS = ("sgd", "adam", "adamw", "zero", "zero in buckets")


@dataclass
class Spec:
    """Training, the same on every rank.

    Attributes:
        name: "stock" for torch's DDP, "fused" for fastcomm's over fastcomm.
        members: the global ranks of its group, in order.
        options: DDP's.
        accumulates: steps of the optimizer that come after two backward passes.
        uneven: how many steps more each rank has than the one before it, under ``join()``.
        clip: the largest norm of all gradients, or None.
    """

    name: str
    seed: int
    members: tuple[int, ...]
    plan: Plan
    options: dict[str, Any]
    steps: int
    accumulates: bool
    uneven: int
    optimizer: str
    set_to_none: bool
    clip: float | None
    autocast: bool


@dataclass
class Ended:
    """What training gave on one rank: losses, all values of the model, gradients; or an error."""

    losses: list[float]
    state: list[tuple[str, torch.Tensor]]
    error: str = ""


def _tree_hook(spec: Spec, group: dist.ProcessGroup) -> Any:
    """Return a hook that sums in the documented order."""
    size = len(spec.members)

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch would refuse annotations that are strings
        mine = bucket.buffer()
        if spec.name == "stock":
            mine.mul_(1 / size)  # as DDP does
        terms = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(terms, mine, group=group)
        total = reduced(terms, "sum" if spec.name == "stock" else "avg")
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(total)
        return done

    return hook


def _make(spec: Spec, rank: int, group: dist.ProcessGroup, gloo: bool) -> Any:
    torch.manual_seed(spec.seed + rank)  # rank 0's values count
    model = Model(spec.plan)
    wrapper: Any = nn.parallel.DistributedDataParallel
    if spec.name == "fused" and not gloo:
        wrapper = fastcomm.nn.parallel.DistributedDataParallel
    ddp = wrapper(model, process_group=group, **spec.options)
    if gloo and (len(spec.members) > 2 or spec.name == "fused"):
        ddp.register_comm_hook(None, _tree_hook(spec, group))
    return ddp


def _optimizer(spec: Spec, ddp: nn.Module, group: dist.ProcessGroup) -> torch.optim.Optimizer:
    parameters = [value for value in ddp.parameters() if value.requires_grad]
    if spec.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.0 if spec.plan.sparse else 0.9)
    if spec.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=0.01)
    if spec.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=0.01)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(
        parameters,
        optimizer_class=torch.optim.Adam,
        process_group=group,
        parameters_as_bucket_view="buckets" in spec.optimizer,
        lr=0.01,
    )


def _train(spec: Spec, rank: int, group: dist.ProcessGroup, gloo: bool) -> Ended:
    """Train on one rank."""
    ddp = _make(spec, rank, group, gloo)
    optimizer = _optimizer(spec, ddp, group)
    torch.manual_seed(spec.seed + 100 + rank)  # dropout and data
    losses = []
    with ddp.join() if spec.uneven else contextlib.nullcontext():
        for step in range(spec.steps + spec.uneven * rank):
            x = torch.randn(3 + rank, WIDTH).to(spec.plan.dtype)
            x.requires_grad_(spec.plan.checkpoint is True)
            quiet = spec.accumulates and step % 2 == 0
            with ddp.no_sync() if quiet else contextlib.nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=spec.autocast):
                    loss = loss_of(ddp, x, (step + rank) % 3 == 0)
                loss.backward()
            losses.append(loss.item())
            if quiet:
                continue
            if spec.clip is not None:
                losses.append(float(nn.utils.clip_grad_norm_(ddp.parameters(), spec.clip)))
            optimizer.step()
            optimizer.zero_grad(set_to_none=spec.set_to_none)
        ddp.zero_grad()
        if not spec.uneven:  # gradients are compared as well
            loss_of(
                ddp, torch.randn(4, WIDTH).to(spec.plan.dtype).requires_grad_(), False
            ).backward()
    state = [(name, value.detach().clone()) for name, value in ddp.module.state_dict().items()]
    grads = [(f"{n}.grad", p.grad) for n, p in ddp.module.named_parameters() if p.grad is not None]
    return Ended(losses, state + [(n, grad.to_dense().detach()) for n, grad in grads])


def _ended(*arguments: Any) -> Ended:
    try:
        return _train(*arguments)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.split('/')[-1]}:{last.lineno}"
        return Ended([], [], f"{type(error).__name__} in {where}: {error}")


def judge(own: Ended, gloo: Ended) -> str:
    """Say what is wrong with training over fastcomm, if anything."""
    if own.error:
        return own.error
    if [loss.hex() for loss in own.losses] != [loss.hex() for loss in gloo.losses]:
        return f"losses {own.losses}, over Gloo {gloo.losses}"
    if (names := [n for n, _ in own.state]) != [n for n, _ in gloo.state]:
        return f"values {names}, over Gloo {[n for n, _ in gloo.state]}"
    for (name, found), (_, wanted) in zip(own.state, gloo.state, strict=True):
        if not same_bits(found, wanted):
            return f"{name}: {found.flatten()[:5]}, over Gloo {wanted.flatten()[:5]}"
    return ""


def _play(spec: Spec, rank: int, group: dist.ProcessGroup, gloo_group: dist.ProcessGroup) -> Played:
    gloo = _ended(spec, rank, gloo_group, True)
    if gloo.error:  # of one kind on all ranks, or its peers time out
        return Played(f"Gloo: {gloo.error}", error=True)
    own = _ended(spec, rank, group, False)
    return Played(judge(own, gloo), error=bool(own.error))


def _mode(choice: random.Random, plan: Plan, uneven: bool) -> str:
    """Draw how DDP learns of unused parameters: something that the model allows."""
    if plan.skips:
        return "find_unused_parameters"
    if plan.checkpoint is True and ("shared" in plan.layers or plan.unused):
        return "static_graph"
    if plan.checkpoint is True:
        return "" if uneven else choice.choice(["", "static_graph"])
    modes = ["find_unused_parameters", "static_graph"] + [""] * (not plan.unused)
    return choice.choice([mode for mode in modes if not uneven or mode != "static_graph"])


def _optimizers(plan: Plan, uneven: bool) -> tuple[str, ...]:
    """Return the optimizers that can train a model."""
    if plan.sparse or "float16" in plan.layers:
        return ("sgd",)
    if uneven or plan.mixed:
        return OPTIMIZERS[:3]
    # DDP keeps the strides of such parameters, which torch's buckets of parameters change.
    return OPTIMIZERS[:4] if plan.turned else OPTIMIZERS


# torch has none for processors without AVX-512.
_LSTM_IN_BF16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def draw(seed: int) -> Spec:
    """Draw training that DDP is made for."""
    choice = random.Random(seed)
    members = choice.choice([members for members in GROUPS if len(members) > 1])
    plan = draw_plan(choice, sparse=len(members) == 2)
    uneven = choice.choice([0, 0, 0, 1, 2])
    if plan.sparse or (plan.checkpoint is True and ("shared" in plan.layers or plan.unused)):
        uneven = 0
    mode = _mode(choice, plan, uneven > 0)
    views = choice.random() < 0.4 and len(members) != 3  # by which DDP divides otherwise
    options = {
        "bucket_cap_mb": choice.choice([25, 0.01, 0.001]),
        "broadcast_buffers": choice.random() < 0.7,
        "gradient_as_bucket_view": views,
        **({mode: True} if mode else {}),
    }
    return Spec(
        name="stock" if plan.sparse else choice.choice(["stock", "stock", "fused"]),
        seed=seed,
        members=members,
        plan=plan,
        options=options,
        steps=choice.randint(2, 4),
        accumulates=choice.random() < 0.2 and not uneven and mode != "static_graph",
        uneven=uneven,
        optimizer=choice.choice(_optimizers(plan, uneven > 0)),
        set_to_none=choice.random() < 0.6,
        clip=None if plan.sparse else choice.choice([None, None, 0.5]),
        autocast=choice.random() < 0.15
        and plan.dtype == torch.float32
        and not plan.mixed
        and (_LSTM_IN_BF16 or "lstm" not in plan.layers),
    )


TRIALS = Trials(draw, _play)

if __name__ == "__main__":
    command(TRIALS, __doc__)
