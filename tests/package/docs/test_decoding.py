"""docs/frameworks/decoding.md: its modules for vLLM and SGLang, on stand-ins for theirs.

Neither is installed for tests. The stand-ins have what the modules use of them, with the same
signatures; that these are theirs, the page says for the versions that it names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World
from support.rms_norm import add_rms_norm
from support.tree import same_bits

import fastcomm.distributed as fd

PAGE = Path(__file__).resolve().parents[3] / "docs/frameworks/decoding.md"
EPS = 1e-6


def _provide(name: str, **contents: Any) -> None:
    """Let ``import name`` find a module with these contents."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:length]), ModuleType(parts[length - 1]))
    for length in range(1, len(parts)):
        parent, child = ".".join(parts[:length]), ".".join(parts[: length + 1])
        setattr(sys.modules[parent], parts[length], sys.modules[child])
    vars(sys.modules[name]).update(contents)


def _module(name: str) -> Any:
    """Return a module of the page."""
    code = re.findall(rf"```python\n(# {name}\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(code[0], f"{name}.py", "exec"), vars(module))
    return module


class _OfVllm:
    """The constructor and the fields of vLLM's CpuCommunicator."""

    def __init__(
        self,
        cpu_group: Any,
        device: Any = None,
        device_group: Any = None,
        unique_name: str = "",
        use_all2all: bool = False,
    ) -> None:
        self.device_group, self.world_size = device_group, device_group.size()


class _OfSglang:
    """The fields of SGLang's GroupCoordinator, and methods that nothing else may reach."""

    def __init__(self, group: Any, size: int) -> None:
        self.device_group, self.world_size = group, size

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        assert self.world_size == 1
        return input_

    def all_gather(
        self, input_: torch.Tensor, dim: int = -1, output_tensor_list: Any = None
    ) -> torch.Tensor:
        assert self.world_size == 1 or output_tensor_list is not None
        return input_


def _reduces_and_gathers(world: World, communicator: Any) -> None:
    torch.manual_seed(world.rank)
    for dtype in (torch.float32, torch.bfloat16):
        mine = torch.randn(2, 3, 4).to(dtype)
        parts = [torch.empty_like(mine) for _ in range(world.size)]
        dist.all_gather(parts, mine)
        total = mine.clone()
        dist.all_reduce(total)
        for dim in range(-3, 3):
            before = len(fd.records())
            assert torch.equal(communicator.all_gather(mine, dim), torch.cat(parts, dim))
            assert len(fd.records()) == before + 1
        given = mine.clone()
        assert communicator.all_reduce(given) is given  # vLLM and SGLang reduce in place
        assert torch.equal(given, total)


@on_ranks(2)
def test_vllm_s_communicator(world: World) -> None:
    world.init()
    communicators = "vllm.distributed.device_communicators.cpu_communicator"
    _provide(communicators, CpuCommunicator=_OfVllm)
    platform: Any = type("CpuPlatform", (), {"dist_backend": "gloo"})
    _provide("vllm.platforms.cpu", CpuPlatform=platform)
    _module("vllm_fastcomm").register()
    assert platform.dist_backend == "fastcomm"
    module, name = platform.get_device_communicator_cls().split(".")
    group = dist.new_group(backend="fastcomm")
    communicator = getattr(sys.modules[module], name)(
        cpu_group=dist.new_group(backend="gloo"),
        device=torch.device("cpu"),
        device_group=group,
        unique_name="tp:0",
        use_all2all=False,
    )
    _reduces_and_gathers(world, communicator)


@on_ranks(2)
def test_sglang_s_coordinator(world: World) -> None:
    world.init()
    platform: Any = type("CpuDeviceMixin", (), {})
    _provide("sglang.srt.distributed.parallel_state", GroupCoordinator=_OfSglang)
    _provide("sglang.srt.platforms.cpu", CpuDeviceMixin=platform)
    _module("sglang_fastcomm").register()
    assert platform().get_torch_distributed_backend_str() == "fastcomm"
    group = dist.new_group(backend="fastcomm")
    _reduces_and_gathers(world, _OfSglang(group, world.size))
    mine = torch.ones(2)
    alone = _OfSglang(group, 1)
    assert alone.all_reduce(mine) is mine and alone.all_gather(mine) is mine
    assert _OfSglang(group, world.size).all_gather(mine, 0, [mine, mine]) is mine


class _Norm(torch.nn.Module):
    """vLLM's RMSNorm: a tensor alone, or with a residual to add to it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(hidden))
        self.variance_epsilon = EPS

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None:
            return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)
        return add_rms_norm(x, residual, self.weight, self.variance_epsilon)


class _RowParallel(torch.nn.Module):
    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.weight = torch.nn.Parameter(torch.randn(hidden, hidden, generator=generator))
        self.reduce_results = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        partial = x @ self.weight
        if self.reduce_results:
            dist.all_reduce(partial)
        return partial


class _Layer(torch.nn.Module):
    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = _Norm(hidden), _Norm(hidden)
        self.self_attn = torch.nn.ModuleDict({"o_proj": _RowParallel(hidden, rank)})
        self.mlp = torch.nn.ModuleDict({"down_proj": _RowParallel(hidden, rank)})
        for module, name in ((self.self_attn, "o_proj"), (self.mlp, "down_proj")):
            setattr(module, name, module[name])

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None) -> Any:
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn["o_proj"](x), residual)
        return self.mlp["down_proj"](x), residual


class _Llama(torch.nn.Module):
    """The places of vLLM's LlamaForCausalLM in which sums and norms are."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        torch.manual_seed(3)
        layers = torch.nn.ModuleList(_Layer(16, vllm_config.rank) for _ in range(2))
        self.model = SimpleNamespace(layers=layers, norm=_Norm(16))
        self.layers, self.norm = layers, self.model.norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual)
        normed: torch.Tensor = self.norm(x, residual)[0]
        return normed


@on_ranks(2)
def test_vllm_s_llama_with_sums_in_its_norms(world: World) -> None:
    world.init()
    group = dist.new_group(backend="fastcomm")
    _provide("vllm.distributed", get_tp_group=lambda: SimpleNamespace(device_group=group))
    _provide("vllm.model_executor.layers.layernorm", RMSNorm=_Norm)
    _provide("vllm.model_executor.models.llama", LlamaForCausalLM=_Llama)
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = _Llama(vllm_config=world)(x.clone())
        before = len(fd.records())
        found = _module("vllm_fastcomm_llama").Llama(vllm_config=world)(x.clone())
    issued = [call.operation for call in fd.records()][before:]
    assert issued == ["all_reduce_add_rms_norm"] * 4
    assert same_bits(found, expected)
