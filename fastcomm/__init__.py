"""fastcomm: collectives for ``torch.nn.parallel`` and ``torch.distributed`` on one box.

    import torch.distributed as dist
    dist.init_process_group("fastcomm")

``import torch`` alone makes the backend known, and so does ``import fastcomm``. torch imports
this package while torch itself is only half imported, so nothing here may load the native library
or fail: every public name is looked up when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from typing import TYPE_CHECKING

from fastcomm import _register
from fastcomm._version import __version__

if TYPE_CHECKING:  # what _MODULE_OF says, and public modules, for type checkers
    from fastcomm import amp as amp
    from fastcomm import comm as comm
    from fastcomm import ddp_comm_hooks as ddp_comm_hooks
    from fastcomm import distributed as distributed
    from fastcomm import errors as errors
    from fastcomm import nn as nn
    from fastcomm import optim as optim
    from fastcomm._advise.advise import Advice as Advice
    from fastcomm._advise.advise import AdviseError as AdviseError
    from fastcomm._advise.advise import advise as advise
    from fastcomm._distributed.barrier import monitored_barrier as monitored_barrier
    from fastcomm._distributed.direct import prepare as prepare
    from fastcomm._distributed.explain import explain as explain
    from fastcomm._distributed.flight_recorder import dump_flight_recorder as dump_flight_recorder
    from fastcomm._distributed.memory import empty as empty
    from fastcomm._distributed.memory import is_shared as is_shared
    from fastcomm._gradients.fused import clip_grad_norm_ as clip_grad_norm_
    from fastcomm._gradients.fused import combined_norm as combined_norm
    from fastcomm._gradients.fused import fused_all_reduce_ as fused_all_reduce_
    from fastcomm._gradients.shards import fused_reduce_scatter_ as fused_reduce_scatter_
    from fastcomm._gradients.shards import gather_shards_ as gather_shards_
    from fastcomm._launch.launch import LaunchError as LaunchError
    from fastcomm._launch.launch import launch as launch
    from fastcomm._native import NativeLibraryError as NativeLibraryError
    from fastcomm._native import is_available as is_available
    from fastcomm._records.tracing import trace as trace
    from fastcomm._use import use as use
    from fastcomm.errors import CollectiveArgumentError as CollectiveArgumentError
    from fastcomm.errors import CollectiveMismatchError as CollectiveMismatchError
    from fastcomm.errors import CollectiveTimeoutError as CollectiveTimeoutError
    from fastcomm.errors import CommunicationSystemError as CommunicationSystemError
    from fastcomm.errors import FastcommError as FastcommError
    from fastcomm.errors import ForkedProcessError as ForkedProcessError
    from fastcomm.errors import GroupPoisonedError as GroupPoisonedError
    from fastcomm.errors import PeerLeftError as PeerLeftError
    from fastcomm.errors import PeerLostError as PeerLostError
    from fastcomm.errors import UnsupportedError as UnsupportedError

# The list of public names: tests compare it with what stands above, and with docs/api.md.
_MODULE_OF = {
    **dict.fromkeys(
        (
            *("CollectiveArgumentError", "CollectiveMismatchError", "CollectiveTimeoutError"),
            *("CommunicationSystemError", "FastcommError", "ForkedProcessError"),
            *("GroupPoisonedError", "PeerLeftError", "PeerLostError", "UnsupportedError"),
        ),
        "errors",
    ),
    **dict.fromkeys(("Advice", "AdviseError", "advise"), "_advise.advise"),
    **dict.fromkeys(("NativeLibraryError", "is_available"), "_native"),
    **dict.fromkeys(("LaunchError", "launch"), "_launch.launch"),
    **dict.fromkeys(("clip_grad_norm_", "combined_norm", "fused_all_reduce_"), "_gradients.fused"),
    **dict.fromkeys(("empty", "is_shared"), "_distributed.memory"),
    **dict.fromkeys(("fused_reduce_scatter_", "gather_shards_"), "_gradients.shards"),
    "dump_flight_recorder": "_distributed.flight_recorder",
    "explain": "_distributed.explain",
    "monitored_barrier": "_distributed.barrier",
    "prepare": "_distributed.direct",
    "trace": "_records.tracing",
    "use": "_use",
}

__all__ = ["__version__", *_MODULE_OF]


if not TYPE_CHECKING:  # to which it would say that any name is there

    def __getattr__(name: str) -> object:
        """Import the module that holds or bears a public name when it is first used (PEP 562)."""
        if name in _MODULE_OF:
            module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
            value: object = getattr(module, name)
            globals()[name] = value
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    modules = {module.name for module in pkgutil.iter_modules(__path__)}
    return sorted({*globals(), *__all__, *(n for n in modules if not n.startswith("_"))})


_register.autoload()
