"""Replicas: what they hold, what is sent, and whose memory it is."""

from __future__ import annotations

import contextlib
import copy
import io
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.garbage import garbage_of
from support.places import ACCELERATOR, Place
from support.tree import tree_sum
from torch import nn

import fastcomm
from fastcomm.nn.parallel.replicate import Replicator, replicate

TWO = ["cpu", "cpu"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3, bias=False))
        self.again = self.first  # shared
        self.nothing = None
        self.register_parameter("no_parameter", None)
        self.register_buffer("no_buffer", None)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.many = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(2)])
        self.words = nn.ParameterDict({"a": nn.Parameter(torch.randn(3))})
        self.label = "model"

    def forward(self, x: torch.Tensor) -> Any:
        x = self.again(self.first(x)) * self.many[0] + self.many[1]
        return self.body(x) + self.words["a"] * torch.view_as_real(self.scale).sum()


@pytest.mark.parametrize("detach", [False, True])
def test_replicas_do_what_the_module_does(place: Place, detach: bool) -> None:
    model = Model().eval()
    x = torch.randn(5, 4)
    wanted, two = model(x), place.devices(2)
    model.to(place.first)
    for i, replica in enumerate(replicate(model, two, detach)):
        assert type(replica) is Model and replica is not model and not replica.training
        place.check_alike(replica(x.to(two[i])), wanted)
        assert all(buffer.device == two[i] for buffer in replica.buffers())
        assert replica.again is replica.first and replica.nothing is None
        assert replica.no_parameter is None and replica.no_buffer is None
        if detach and i == 0:  # as in torch: the module's own
            assert replica.first.weight is model.first.weight
        else:
            assert list(replica.parameters()) == []
            assert replica.first.weight.requires_grad != detach
        assert len(list(replica.buffers())) == len(list(model.buffers()))
        if place.name == "cpu":  # copies of complex and real ones share memory, as torch's do
            torch.save(replica, io.BytesIO())
    assert replicate(model, []) == []


def test_replicas_of_several_types_can_be_saved(place: Place) -> None:
    """On devices their tensors lie together; torch refuses to save storages of two types."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3).bfloat16())
    replica = replicate(model.to(place.first), place.devices(2), detach=True)[1]
    stream = io.BytesIO()
    torch.save(replica.state_dict(), stream)
    torch.save([replica[0].weight, replica[1].num_batches_tracked, replica[2].bias], stream)


def test_gradients_of_all_replicas_are_summed_into_the_module(place: Place) -> None:
    model, devices = Model().double(), place.devices(3)
    x = torch.randn(6, 4, dtype=torch.float64)
    terms = []
    for part in x.chunk(3):
        plain = copy.deepcopy(model)
        plain(part).square().sum().backward()
        terms.append([parameter.grad for parameter in plain.parameters()])
    model.to(place.first)
    losses = [
        replica(part.to(device)).square().sum()
        for replica, part, device in zip(
            replicate(model, devices), x.chunk(3), devices, strict=True
        )
    ]
    sum(loss.to(place.first) for loss in losses).backward()
    for parameter, *parts in zip(model.parameters(), *terms, strict=True):
        assert parameter.grad is not None
        if parameter.is_complex():
            total = torch.view_as_complex(tree_sum([torch.view_as_real(part) for part in parts]))
            place.check_alike(parameter.grad, total)
        else:
            place.check_alike(parameter.grad, tree_sum(parts))


def test_the_first_replica_shares_the_modules_buffers(place: Place) -> None:
    model, two = Model().to(place.first), place.devices(2)
    first, second = replicate(model, two)
    first.body[0](torch.randn(8, 4).to(two[0]) + 5)
    second.body[0](torch.randn(8, 4).to(two[1]) - 5)
    assert model.body[0].running_mean.min() > 0
    assert model.body[0].num_batches_tracked == 1


def test_only_what_changed_is_sent_again() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256))
    replicator = Replicator(model, TWO)
    whole = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    places = []
    for step in range(5):
        replicas = replicator.replicas(detach=True)
        wanted = [whole, 0, 256 * 1024, 0, 0][step]
        if step == 2:  # pieces of 16 KiB: the second half of the weight
            wanted = 128 * 1024
        assert replicator.written_bytes == wanted, step
        assert torch.equal(replicas[1][0].weight, model[0].weight)
        places.append(replicas[1][0].weight.data_ptr())
        del replicas
        if step == 1:
            model[0].weight.data[128:] += 1  # which no version counter tells
    assert len(set(places)) == 1


@pytest.mark.accelerator
def test_on_devices_memory_lasts_and_all_is_sent_again() -> None:
    devices = ACCELERATOR.devices(3)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).to(devices[0])
    replicator = Replicator(model, devices)
    whole = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    places = []
    for _step in range(4):
        replicas = replicator.replicas(detach=True)
        assert replicator.written_bytes == 2 * whole
        for replica, device in zip(replicas, devices, strict=True):
            assert replica[0].weight.device == device
            assert torch.equal(replica[0].weight.cpu(), model[0].weight.cpu())
        places.append([replica[0].weight.data_ptr() for replica in replicas])
        del replicas, replica
        model[0].weight.data.mul_(3)
    assert places == [places[0]] * 4


@pytest.mark.accelerator
def test_replicas_for_other_streams_have_other_memory() -> None:
    """Work given to the earlier streams may still read the old copies."""
    devices = ACCELERATOR.devices(2)
    model = nn.Linear(64, 64).to(devices[0])
    replicator = Replicator(model, devices)
    x = torch.randn(5, 64).to(devices[1])
    wanted, results = [], []
    for step in range(6):
        wanted.append((x @ model.weight.t().to(devices[1]) + model.bias.to(devices[1])).cpu())
        sides = [torch.Stream(device) for device in devices] if step % 2 else []
        with contextlib.ExitStack() as stack:
            for side, device in zip(sides, devices, strict=False):
                side.wait_stream(torch.accelerator.current_stream(device))
                stack.enter_context(side)
            results.append(replicator.replicas(detach=True)[1](x))
        for side, device in zip(sides, devices, strict=False):
            torch.accelerator.current_stream(device).wait_stream(side)
        with torch.no_grad():
            model.weight.add_(1)
    for got, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(got.cpu(), want)


def test_what_a_replica_did_to_its_own_tensors_does_not_last(place: Place) -> None:
    model, two = nn.BatchNorm1d(4).to(place.first), place.devices(2)
    replicator = Replicator(model, two)
    for _ in range(3):
        replica = replicator.replicas(detach=True)[1]
        assert replica.running_mean is not None and model.running_mean is not None
        assert torch.equal(replica.running_mean.cpu(), model.running_mean.cpu())
        assert torch.equal(replica.weight.cpu(), model.weight.cpu())
        replica(torch.randn(8, 4).to(two[1]) + 3)
        replica.weight.fill_(9)


def test_memory_that_a_graph_holds_is_not_written_to(place: Place) -> None:
    """Delay the backward passes of two steps: each uses the weights of its own forward pass."""
    model, two = nn.Linear(64, 64, bias=False).to(place.first), place.devices(2)
    replicator = Replicator(model, two)
    x = torch.randn(3, 64).to(two[1]).requires_grad_()
    outputs, weights = [], []
    for _ in range(3):
        outputs.append(replicator.replicas(detach=False)[1](x))
        weights.append(model.weight.detach().cpu().clone())
        with torch.no_grad():
            model.weight.add_(1)
    for output, weight in zip(outputs, weights, strict=True):
        (gradient,) = torch.autograd.grad(output.sum(), x)
        place.check_alike(gradient, torch.ones(3, 64) @ weight)


def test_attributes_and_structure_follow_the_module(place: Place) -> None:
    model = Model().to(place.first)
    replicator = Replicator(model, place.devices(2))
    before = replicator.replicas(detach=True)[1]
    before.left_behind = 1
    identity = id(before)
    del before
    model.label = "changed"
    model.eval()
    after = replicator.replicas(detach=True)[1]
    assert id(after) == identity  # the object lasts
    assert after.label == "changed" and not after.training and not hasattr(after, "left_behind")
    del after
    model.body.append(nn.Linear(3, 2, device=place.first))
    model.first.weight = nn.Parameter(torch.zeros(4, 4, device=place.first))
    grown = replicator.replicas(detach=True)[1]
    assert len(grown.body) == 4
    weights = [module.body[3].weight for module in (grown, model)]
    assert torch.equal(*(weight.cpu() for weight in weights))
    assert grown.first.weight.count_nonzero() == 0


def test_a_replica_that_somebody_holds_stays_as_it_is(place: Place) -> None:
    model = nn.Linear(2, 2).to(place.first)
    replicator = Replicator(model, place.devices(2))
    held = replicator.replicas(detach=True)[1]
    weight = held.weight.clone()
    with torch.no_grad():
        model.weight.add_(1)
    other = replicator.replicas(detach=True)[1]
    assert other is not held
    assert torch.equal(held.weight, weight)
    assert torch.equal(other.weight.cpu(), model.weight.cpu())


def test_classes_with_ideas_of_their_own(place: Place) -> None:
    """An LSTM also keeps a list of its weights."""
    model = nn.LSTM(3, 5, num_layers=2, bidirectional=True).to(place.first)
    two = place.devices(2)
    x = torch.randn(4, 2, 3)
    replicator = Replicator(model, two)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
            wanted = model(place.put(x))[0].cpu()
            for replica, device in zip(replicator.replicas(detach=True), two, strict=True):
                assert torch.equal(replica(x.to(device))[0].cpu(), wanted)


def test_a_replica_that_frees_its_memory_or_changes_its_class(place: Place) -> None:
    model = nn.Linear(4, 4).to(place.first)
    replicator = Replicator(model, place.devices(2))
    replica = replicator.replicas(detach=True)[1]
    replica.weight.untyped_storage().resize_(0)
    del replica
    weight = replicator.replicas(detach=True)[1].weight
    assert torch.equal(weight.cpu(), model.weight.cpu())
    model.__class__ = type("Other", (nn.Linear,), {})
    assert type(replicator.replicas(detach=True)[1]).__name__ == "Other"


def test_memory_that_somebody_holds_is_theirs(place: Place) -> None:
    model = nn.BatchNorm1d(2).to(place.first)
    replicator = Replicator(model, place.devices(2))
    held = replicator.replicas(detach=True)[1].running_mean
    replicator.replicas(detach=True)[1].running_mean.add_(1)
    assert held is not None and held.tolist() == [0, 0]


def test_quantized_buffers_are_copied() -> None:
    model = nn.Identity()
    model.register_buffer("q", torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8))
    replica = Replicator(model, TWO).replicas(detach=True)[1]
    assert replica.q.dequantize().tolist() == [1, 1, 1]


def test_a_module_that_holds_a_compiled_one_is_left_as_it_is() -> None:
    model = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"))
    names = [name for name, _ in model.named_parameters()]
    kinds = [type(module) for module in model.modules()]
    first, second = replicate(model, TWO)
    assert [type(module) for module in second.modules()] == kinds
    assert second[0]._orig_mod.weight is second[0].weight is not first[0].weight
    assert [name for name, _ in model.named_parameters()] == names


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_what_no_replica_used_has_zeros_or_no_gradient(
    place: Place, lasting: bool, zeros: bool
) -> None:
    two = place.devices(2)
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)]).to(two[0])
    replicas = Replicator(model, two, lasting=lasting, zeros=zeros).replicas(detach=False)
    replicas[1][0](torch.ones(1, 2, device=two[1])).sum().backward()
    used, *unused = [layer.weight.grad for layer in model]
    assert used is not None and used.eq(1).all()  # one replica's, and zeros from the other
    for grad in unused:
        assert grad is None if not zeros else grad is not None and not grad.any()


def test_no_cycles_are_left(place: Place) -> None:
    def with_a_cycle() -> None:
        replicas = replicate(model, place.devices(2))
        replicas[0].__dict__["itself"] = replicas

    model = Model().to(place.first)
    assert garbage_of(with_a_cycle)  # it would be seen
    assert not garbage_of(lambda: replicate(model, place.devices(2)))


def test_what_cannot_be_replicated() -> None:
    with pytest.raises(RuntimeError, match="Modules with uninitialized parameters"):
        replicate(nn.LazyLinear(10), TWO)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_alone_and_inside() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    x = torch.randn(6, 4)
    for model in (scripted, nn.Sequential(scripted, nn.Linear(2, 3))):
        for _ in range(2):
            replicas = replicate(model, TWO)
            assert all(torch.equal(replica(x), model(x)) for replica in replicas)
            sum(replica(x).sum() for replica in replicas).backward()
            found = [p.grad for p in model.parameters()]
            model.zero_grad()
            (2 * model(x).sum()).backward()
            torch.testing.assert_close(found, [p.grad for p in model.parameters()])
            model.zero_grad()
            with torch.no_grad():
                next(iter(model.parameters())).mul_(2)


class ByType(nn.Linear):
    """Compares by value, and so has no hash."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)


class ByHash(ByType):
    def __hash__(self) -> int:
        return 1


class Norm(nn.BatchNorm1d):
    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)


@pytest.mark.parametrize("kind", [ByType, ByHash])
@pytest.mark.parametrize("buffers", ["first", "mean", "sync_batchnorm"])
def test_modules_that_compare_by_value(place: Place, kind: Any, buffers: Any) -> None:
    torch.manual_seed(0)
    children = [kind(4, 4), Norm(4), kind(4, 4), Norm(4)]
    former: list[nn.Module] = []
    with torch.no_grad():
        for norm in children[1::2]:
            norm.weight.add_(1)
    devices = place.devices(2)
    for child in children:
        child._apply(lambda t: t.to(devices[0]))
    net = nn.Sequential(*children)
    parallel = fastcomm.nn.parallel.DataParallel(net, devices, buffers=buffers)
    x = torch.randn(6, 4).to(devices[0])
    for step in range(3):
        bare, norms = copy.deepcopy(net), children[1::2]
        output = parallel(x)
        if buffers == "sync_batchnorm":
            torch.testing.assert_close(output, bare(x))
        assert all(
            not torch.equal(norm.running_mean, bare[i].running_mean) or buffers == "sync_batchnorm"
            for i, norm in zip((1, 3), norms, strict=True)
        )
        output.square().sum().backward()
        for child in children:
            assert child.weight.grad is not None
            child.weight.grad = None
        former.append(children[step])  # which then lives on
        children[step] = net[step] = type(children[step])(4, 4) if step != 1 else Norm(4)
        children[step]._apply(lambda t: t.to(devices[0]))
    replicas = replicate(net, devices)
    for child, copied in zip(children, replicas[1], strict=True):
        assert torch.equal(copied.weight.to(devices[0]), child.weight)
    broken = nn.Sequential(kind(2, 2), kind(2, 2).to("meta"))
    with pytest.raises(RuntimeError, match="found one of them on device: meta"):
        fastcomm.nn.parallel.DataParallel(broken, ["cpu", "cpu"])(torch.ones(2, 2))


@pytest.fixture
def swapping() -> Iterator[None]:
    """Converted parameters are swapped, not overwritten: torch refuses where others hold them."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


class _Refuses(nn.Module):
    """Raises ``error``, if there is one, for a batch of so many rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.error: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.error is not None and len(x) == self.rows:
            raise self.error("told to")
        return x


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize(
    ("rows", "error", "fails"),
    [
        (1, None, 0),  # one replica
        (4, None, 0),  # two
        # of the first replica, of the second
        *((3, error, rows) for error in (ValueError, KeyboardInterrupt) for rows in (2, 1)),
    ],
)
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("buffers", ["first", "mean", "sync_batchnorm"])
def test_parameters_are_the_modules_alone_between_passes(
    place: Place, grad: bool, rows: int, error: Any, fails: int, buffers: Any
) -> None:
    """After a pass that failed, too."""
    refuses = _Refuses(fails)
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), refuses, nn.Linear(3, 2)).eval()
    devices = place.devices(2)
    net.to(devices[0])
    parallel = fastcomm.nn.parallel.DataParallel(net, devices, buffers=buffers)
    for dtype in (torch.float64, torch.float32, torch.float64):
        net.to(dtype)  # raises where somebody holds a parameter
        x = torch.ones(rows, 3, dtype=dtype, device=devices[0])
        with torch.set_grad_enabled(grad):
            if error is not None:
                refuses.error = error
                with pytest.raises(error, match="told to"):
                    parallel(x)
                refuses.error = None
            else:
                output = parallel(x)
                torch.testing.assert_close(output, net(x))
                if grad:
                    output.sum().backward()
                    net.zero_grad()
                del output
            weight = torch.nn.Parameter(torch.zeros_like(net[0].weight))
            torch.utils.swap_tensors(net[0].weight, weight)
            assert not net[0].weight.any()
            torch.testing.assert_close(parallel(x), net(x))


@pytest.mark.parametrize("grad", [True, False])
def test_a_replaced_parameter_is_freed_at_once(place: Place, grad: bool) -> None:
    net, devices = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), place.devices(2)
    net.to(devices[0])
    parallel = fastcomm.nn.parallel.DataParallel(net, devices)
    with torch.set_grad_enabled(grad):
        parallel(torch.ones(4, 3, device=devices[0]))
    held = [weakref.ref(t) for t in (*net.parameters(), *net.buffers())]
    net[0], net[1] = nn.Linear(3, 3), nn.BatchNorm1d(3)
    assert not any(reference() is not None for reference in held)


def test_what_holds_a_replica_has_it_whole_after_the_pass(place: Place) -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(self.inner)
            return self.inner(x)

    seen: list[nn.Module] = []
    net, devices = Keeps().to(place.first), place.devices(2)
    parallel = fastcomm.nn.parallel.DataParallel(net, devices)
    x = torch.ones(4, 3, device=devices[0])
    wanted = parallel(x)
    for inner in seen:
        rows = x.to(inner.weight.device)
        torch.testing.assert_close(inner(rows).to(devices[0]), wanted)
    seen.clear()
    torch.testing.assert_close(parallel(x), wanted)
