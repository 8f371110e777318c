"""DataParallel against the module itself; what torch expects of its own; and more."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import threading
import time
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.places import Place, examples
from support.steps import Applied, gradients, small_net, stepped
from torch import nn
from torch.nn import functional as F

from fastcomm.nn.parallel.data_parallel import (
    DataParallel,
    DataParallelCriterion,
    _ReplicaCache,
    data_parallel,
)

TWO = ["cpu", "cpu"]


@examples(40)
@given(
    rows=st.integers(1, 12),
    replicas=st.integers(1, 5),
    sizes=st.one_of(st.none(), st.lists(st.integers(1, 5), min_size=5, max_size=5)),
)
def test_it_computes_what_the_module_does(
    place: Place, rows: int, replicas: int, sizes: list[int] | None
) -> None:
    """On devices, with the bits of CPU slots."""
    net, x = small_net(), torch.randn(rows, 6, dtype=torch.float64)
    wanted = stepped(copy.deepcopy(net), x)
    sizes = sizes and sizes[:replicas]
    slots = DataParallel(copy.deepcopy(net), ["cpu"] * replicas, chunk_sizes=sizes)
    here = stepped(slots, x)
    for ours, theirs in zip(here, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    parallel = DataParallel(net.to(place.first), place.devices(replicas), chunk_sizes=sizes)
    for input_is in ("there", "on the CPU") if place.name != "cpu" else ():
        given_x = place.put(x) if input_is == "there" else x
        there = stepped(copy.deepcopy(parallel), given_x)
        for ours, theirs in zip(there, here, strict=True):
            place.check_alike(ours, theirs)


def test_the_function(place: Place) -> None:
    net, x = small_net(), torch.randn(5, 6, dtype=torch.float64)
    wanted, two = net(x), place.devices(2)
    net.to(place.first)
    for inputs in (x, (x,), place.put(x)):
        assert data_parallel(net, inputs, two).device == place.first
        torch.testing.assert_close(data_parallel(net, inputs, two).cpu(), wanted)
    torch.testing.assert_close(data_parallel(net, place.put(x), two[:1], "cpu").cpu(), wanted)
    result = data_parallel(net, None, two, two[1], module_kwargs={"input": x})
    assert result.device == two[1]
    torch.testing.assert_close(result.cpu(), wanted)


def test_without_an_accelerator_the_module_runs_as_it_is() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    for devices in (None, [0, 1], [torch.device("cuda:0")]):
        parallel = DataParallel(nn.Linear(2, 2), devices)
        assert parallel.device_ids == []
        x = torch.randn(3, 2)
        assert torch.equal(parallel(x), parallel.module(x))
        losses = DataParallelCriterion(nn.MSELoss())(
            DataParallel(parallel.module, devices, gather_outputs=False)(x), x
        )
        torch.testing.assert_close(losses, F.mse_loss(parallel.module(x), x).view(1))


def test_a_tensor_elsewhere() -> None:
    elsewhere = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    match = r"module must have its parameters and buffers on device cpu \(device_ids\[0\]\) but"
    for call in (DataParallel(elsewhere, TWO), lambda x: data_parallel(elsewhere, x, TWO)):
        with pytest.raises(RuntimeError, match=match):
            call(torch.randn(2, 2))


def test_a_replica_that_raises(place: Place) -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x[0] > 1:
            raise ValueError("too large")
        return x

    parallel = DataParallel(Applied(picky), place.devices(2))
    name = parallel.device_ids[1]
    with pytest.raises(ValueError, match=f"Caught ValueError in replica 1 on device {name}"):
        parallel(torch.tensor([0.0, 2.0]))
    assert parallel(torch.tensor([0.0, 1.0])).tolist() == [0, 1]


def test_modes_hooks_and_attributes() -> None:
    seen: list[int] = []

    class Looks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.warns(UserWarning, match="from a module created with nn.DataParallel"):
                self.zero_grad()
            self.extra = 1
            return super().forward(x)

    net = Looks(2, 2)
    net.register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
    parallel = DataParallel(net, TWO)
    parallel(torch.randn(3, 2))
    assert sorted(seen) == [1, 2]
    assert not hasattr(net, "extra")
    assert parallel.module is net and parallel.device_ids == TWO
    assert parallel.output_device == "cpu" and parallel.dim == 0
    assert list(parallel.state_dict()) == ["module.weight", "module.bias"]

    asks = DataParallel(Applied(lambda x: x * torch.is_grad_enabled()), TWO)
    assert asks(torch.ones(2)).all()
    with torch.no_grad():
        assert not asks(torch.ones(2)).any()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert DataParallel(nn.Linear(2, 2), TWO)(torch.ones(2, 2)).dtype == torch.bfloat16


def test_inference_first_and_training_afterwards(place: Place) -> None:
    parallel = DataParallel(small_net().to(place.first), place.devices(2))
    x = torch.randn(4, 6, dtype=torch.float64)
    with torch.inference_mode():
        wanted = parallel(x)
        assert wanted.is_inference()
    output = parallel(x)
    assert torch.equal(output, wanted)
    output.sum().backward()
    assert len(gradients(parallel.module)) == 4


def test_it_is_pickled_and_copied(place: Place) -> None:
    parallel = DataParallel(small_net().to(place.first), place.devices(2))
    x = torch.randn(4, 6, dtype=torch.float64)
    wanted = parallel(x)
    stream = io.BytesIO()
    torch.save(parallel, stream)
    stream.seek(0)
    for other in (
        pickle.loads(pickle.dumps(parallel)),
        copy.deepcopy(parallel),
        torch.load(stream, weights_only=False),
    ):
        assert torch.equal(other(x), wanted)


def test_sparse_gradients_of_an_embedding() -> None:
    plain = nn.Embedding(10, 5, sparse=True)
    parallel = DataParallel(copy.deepcopy(plain), TWO)
    index = torch.randint(10, (20, 5))
    plain(index).sum().backward()
    parallel(index).sum().backward()
    ours = parallel.module.weight.grad
    assert ours is not None and ours.is_sparse and plain.weight.grad is not None
    torch.testing.assert_close(ours.to_dense(), plain.weight.grad.to_dense())


def test_a_second_derivative(place: Place) -> None:
    net = nn.Linear(4, 1).to(place.first)
    x = torch.ones(2, 4, requires_grad=True)
    output = DataParallel(net, place.devices(2))(x)
    (grad,) = torch.autograd.grad(output, x, torch.ones_like(output), create_graph=True)
    grad.mean().backward()
    assert net.weight.grad is not None
    torch.testing.assert_close(net.weight.grad.cpu(), torch.full((1, 4), 0.25))


def test_gradients_keep_the_layout_of_their_parameters(place: Place) -> None:
    net = nn.Conv2d(8, 16, 2).to(memory_format=torch.channels_last)
    parallel = DataParallel(net.to(place.first), place.devices(2))
    for _ in range(2):
        parallel(torch.randn(4, 8, 8, 8)).sum().backward()
        assert net.weight.grad is not None
        assert net.weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_buffers_that_require_gradients(place: Place) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.randn(3).to(place.first).requires_grad_())
            self.register_buffer("shift", torch.randn(3).to(place.first))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale + self.shift

    net = Scaled()
    x = torch.randn(4, 3)
    DataParallel(net, place.devices(2))(x).sum().backward()
    assert isinstance(net.scale, torch.Tensor) and net.scale.grad is not None
    torch.testing.assert_close(net.scale.grad.cpu(), x.sum(0))


def test_scalars_and_any_dimension(place: Place) -> None:
    x, two = torch.arange(8.0).view(2, 4).to(place.first), place.devices(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DataParallel(Applied(torch.mean), two)(x).tolist() == [1.5, 5.5]
        assert DataParallel(Applied(torch.mean), two, dim=1)(x).tolist() == [2.5, 4.5]
    assert torch.equal(DataParallel(nn.Identity(), two, dim=1)(x), x)
    assert torch.equal(DataParallel(nn.Identity(), two, dim=-1)(x), x)


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    hidden: list[torch.Tensor]


def test_chunk_sizes(place: Place) -> None:
    sizes: list[int] = []

    def count(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x

    parallel = DataParallel(Applied(count), place.devices(3), chunk_sizes=[1, 2, 5])
    for rows, wanted in (
        (8, [1, 2, 5]),
        (16, [2, 4, 10]),
        (4, [1, 1, 2]),
        (1, [1]),
        (9, [1, 2, 6]),
        (3, [1, 1, 1]),
    ):
        sizes.clear()
        x = torch.arange(rows)
        assert torch.equal(parallel(x).cpu(), x)
        assert sorted(sizes) == wanted, rows
    for bad in ([1, 2], [1, 2, 0]):
        with pytest.raises(ValueError, match="chunk_sizes"):
            DataParallel(Applied(count), place.devices(3), chunk_sizes=bad)


def test_buffers(place: Place) -> None:
    x, two = torch.cat([torch.zeros(4, 3), torch.ones(4, 3)]), place.devices(2)
    first, mean = (nn.BatchNorm1d(3, momentum=1.0).to(place.first) for _ in range(2))
    DataParallel(first, two)(x)
    DataParallel(mean, two, buffers="mean")(x)
    assert first.running_mean is not None and mean.running_mean is not None
    assert first.running_mean.tolist() == [0.0] * 3
    assert mean.running_mean.tolist() == [0.5] * 3
    assert first.num_batches_tracked == mean.num_batches_tracked == 1
    with pytest.raises(ValueError, match="buffers is 'first', 'mean' or"):
        DataParallel(first, two, buffers="last")  # type: ignore[arg-type]


class Notes(nn.Module):
    """Every kind of buffer, each written in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("real", torch.zeros(2))
        self.register_buffer("imaginary", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("seen", torch.tensor(False))
        self.register_buffer("none", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.real.copy_(x.sum(0))
            self.imaginary.copy_(1j * x.sum(0))
            self.count += 1
            self.seen.fill_(True)
        return x


@pytest.mark.parametrize("buffers", ["first", "mean", "sync_batchnorm"])
def test_buffers_of_batches_with_fewer_parts_than_devices(place: Place, buffers: Any) -> None:
    for rows, devices in ((0, 2), (1, 1), (1, 2), (1, 3), (2, 3), (3, 3)):
        module = Notes().to(place.first)
        parallel = DataParallel(module, place.devices(devices), buffers=buffers)
        x = torch.arange(1.0, 1 + 2 * rows).view(rows, 2)
        for step in (1, 2):
            parallel(x)
            parts = x.split(1) if rows else [x]
            mean = torch.stack([part.sum(0) for part in parts]).mean(0)
            wanted = mean if buffers == "mean" else parts[0].sum(0)
            assert torch.equal(module.real.cpu(), wanted), (rows, devices)
            assert torch.equal(module.imaginary.cpu(), 1j * wanted), (rows, devices)
            assert int(module.count) == step
            assert bool(module.seen) and module.none is None
        parallel.eval()(x)
        assert int(module.count) == 2


def test_running_statistics_of_a_batch_with_one_part(place: Place) -> None:
    x, wanted = torch.randn(1, 3, 5, 5), nn.BatchNorm2d(3)
    wanted(x)
    for buffers in ("first", "mean", "sync_batchnorm"):
        module = nn.BatchNorm2d(3).to(place.first)
        DataParallel(module, place.devices(2), buffers=buffers)(x)
        for ours, theirs in zip(module.buffers(), wanted.buffers(), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


class Conjugated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.w.conj()).real


def test_gradients_of_lazily_conjugated_tensors() -> None:
    x, module = torch.randn(4, 2, dtype=torch.complex64).conj(), Conjugated()
    (wanted,) = torch.autograd.grad(module(x).sum(), module.w)
    (found,) = torch.autograd.grad(DataParallel(module, TWO)(x).sum(), module.w)
    torch.testing.assert_close(found, wanted)


def test_chunks_by_measured_speed(place: Place) -> None:
    """The second replica takes three times as long for a row."""

    def work(x: torch.Tensor) -> torch.Tensor:
        slow = x[-1] == 39
        time.sleep(len(x) * (0.003 if slow else 0.001))
        sizes[bool(slow)] = len(x)
        return x

    sizes: dict[bool, int] = {}
    parallel = DataParallel(Applied(work), place.devices(2), chunk_sizes="measured")
    x = torch.arange(40)
    assert torch.equal(parallel(x).cpu(), x)
    assert sizes == {False: 20, True: 20}
    for _ in range(4):
        assert torch.equal(parallel(x).cpu(), x)
    assert 25 <= sizes[False] <= 34, sizes
    assert torch.equal(copy.deepcopy(parallel)(x).cpu(), x)


@pytest.mark.parametrize("buffers", ["first", "mean", "sync_batchnorm"])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_whatever_the_buffers(place: Place, buffers: Any, training: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).train(training).to(place.first)
    parallel = DataParallel(net, place.devices(2), buffers=buffers)
    before = [buffer.clone() for buffer in net.buffers()]
    for _ in range(2):
        parallel(torch.randn(8, 3)).square().sum().backward()
    changed = [not torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True)]
    assert changed == [training] * 3
    assert all(p.grad is not None for p in net.parameters())


def test_what_a_replica_does_to_its_input_in_place(place: Place) -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.sub_(0.5)
            return self.fc(x)

    net = InPlace().to(place.first)
    for devices in (place.devices(3), [place.first] * 3):
        for _ in range(5):
            x = torch.randn(6, 2).to(place.first)
            DataParallel(net, devices)(x).sum().backward()


def test_buffers_that_an_earlier_pass_still_needs(place: Place) -> None:
    """Evaluate, then train, then take the gradients of the first."""
    net = nn.BatchNorm1d(2, momentum=1.0).double().eval().to(place.first)
    parallel = DataParallel(net, place.devices(2))
    x = torch.randn(8, 2, dtype=torch.float64).to(place.first).requires_grad_()
    (wanted,) = torch.autograd.grad(net(x).sum(), x)
    output = parallel(x)
    net.train()
    parallel(torch.cat([x[:4], 5 * x[4:] + 3]))
    (gradient,) = torch.autograd.grad(output[4:].sum(), x)  # the first replica shares the module's
    torch.testing.assert_close(gradient[4:], wanted[4:])


def test_frozen_parameters_cost_no_gradients() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[0].requires_grad_(False)
    net.register_parameter(
        "odd", nn.Parameter(torch.zeros(3, dtype=torch.float8_e4m3fn), requires_grad=False)
    )
    DataParallel(net, TWO)(torch.randn(4, 4)).sum().backward()
    assert net[0].weight.grad is None and net[1].weight.grad is not None


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_replica_that_exits(place: Place, error: BaseException) -> None:
    def leave(x: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(type(error)) as caught:
        DataParallel(Applied(leave), place.devices(2))(torch.ones(2))
    assert caught.value is error


def test_batches_that_are_dataclasses_or_empty(place: Place) -> None:
    x, two = torch.randn(6, 2), place.devices(2)
    logits = Applied(lambda result: result.logits)
    parallel = DataParallel(logits, two, chunk_sizes=[1, 2])
    assert torch.equal(parallel(Result(x, [])).cpu(), x)
    losses = DataParallelCriterion(nn.MSELoss())(
        DataParallel(logits, two, chunk_sizes=[1, 2], gather_outputs=False)(Result(x, [])), x + 1
    )
    assert losses.tolist() == pytest.approx([2 / 3, 4 / 3])
    linear = nn.Linear(2, 4).to(place.first)
    empty = DataParallel(linear, two, chunk_sizes=[1, 2])(torch.empty(0, 2))
    assert empty.shape == (0, 4)


def test_it_is_torchs_for_who_asks() -> None:
    parallel = DataParallel(nn.Linear(2, 2), TWO, loss_fn=nn.CrossEntropyLoss(torch.ones(2)))
    assert isinstance(parallel, nn.DataParallel)
    assert list(parallel.state_dict()) == ["module.weight", "module.bias"]


def test_concurrent_forward_passes(place: Place) -> None:
    parallel = DataParallel(small_net().to(place.first), place.devices(2))
    inputs = [torch.randn(5, 6, dtype=torch.float64).to(place.first) for _ in range(8)]
    wanted = [parallel.module(x) for x in inputs]
    results: list[Any] = [None] * len(inputs)

    def work(i: int) -> None:
        results[i] = [parallel(inputs[i]) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for want, got in zip(wanted, results, strict=True):
        for result in got:
            torch.testing.assert_close(result, want)


def test_a_checkpointed_model(place: Place) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.net = small_net()
            self.reentrant = reentrant

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.net, x, use_reentrant=self.reentrant)

    plain, x = small_net(), torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    (plain(x).sum() + plain(2 * x).sum()).backward()
    for reentrant in (False, True):
        model = Checkpointed(reentrant).to(place.first)
        parallel = DataParallel(model, place.devices(2))
        (parallel(x).sum() + parallel(2 * x).sum()).backward()  # two passes, then the gradients
        for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


class Sums(nn.Module):
    """A loss that is a mean over what is not ignored, as two sums."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> Any:
        return F.cross_entropy(logits, targets, reduction="sum"), (targets != -100).sum()


@pytest.mark.parametrize("rows", [7, 8])
def test_sums_divided_once_are_the_mean_over_what_is_not_ignored(rows: int) -> None:
    logits, targets = torch.randn(rows, 3, dtype=torch.float64), torch.arange(rows) % 3
    targets[:3] = -100
    sums, counts = DataParallel(Sums(), TWO)(logits, targets)
    torch.testing.assert_close(sums.sum() / counts.sum(), F.cross_entropy(logits, targets))


def test_replicas_may_be_dropped_while_they_are_released() -> None:
    """One thread's pass fails just before another thread's pass releases the replicas."""
    cache = _ReplicaCache(2, zeros=False)
    cache.replicas(nn.Linear(2, 2), ["cpu", "cpu"], False, False)

    class Lock:
        def acquire(self, blocking: bool) -> bool:
            cache._known = None
            return True

        def release(self) -> None:
            pass

    cache._lock = Lock()  # type: ignore[assignment]
    cache.release()
