"""A module's parts, told apart by identity.

``Module.modules()`` compares modules by value where their class defines that: equal modules are
listed once, and modules without a hash are an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import Module


def modules_of(network: Module) -> list[Module]:
    """Return the module and all inside it, each once, in the order of ``Module.modules()``."""
    found: dict[int, Module] = {}
    rest = [network]
    while rest:
        module = rest.pop()
        if id(module) not in found:
            found[id(module)] = module
            children = module._modules.values()
            rest += [child for child in reversed(list(children)) if child is not None]
    return list(found.values())


def buffers_of(network: Module) -> list[torch.Tensor]:
    """Return all buffers, each once, in the order of ``Module.buffers()``."""
    tensors = (buffer for module in modules_of(network) for buffer in module._buffers.values())
    return list({id(tensor): tensor for tensor in tensors if tensor is not None}.values())


def tensors_of(network: Module) -> Iterator[torch.Tensor]:
    """Yield the parameters and buffers of each module; shared ones are repeated."""
    for module in modules_of(network):
        for table in (module._parameters, module._buffers):
            yield from (tensor for tensor in table.values() if tensor is not None)


def can_be_replicated(network: Module) -> bool:
    """Tell whether every module inside a ScriptModule is a ScriptModule."""
    return all(
        isinstance(part, torch.jit.ScriptModule)
        for module in modules_of(network)
        if isinstance(module, torch.jit.ScriptModule)
        for part in modules_of(module)
    )
