"""Streams where autograd or threads bring together what several devices compute.

Autograd knows one stream per node, and makes it current for the node's backward. Incoming gradients
are ready there, whatever device they are on, and outgoing ones must be ready there too ("Stream
sync contract when dealing with multi-deviced-ness", torch/csrc/autograd/input_buffer.cpp). So a
backward that works on several devices forks from that stream, and joins it again. On the CPU, and
on devices that our kernels do not serve, these functions do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from fastcomm._devices.slots import CPU, served


def current(device: torch.device) -> torch.Stream | None:
    """Return the current stream of a device that our kernels serve; None for others."""
    if device == CPU or torch.compiler.is_compiling() or device.type != served():
        return None
    return torch.accelerator.current_stream(device)


def fork(devices: Iterable[torch.device]) -> list[torch.Stream]:
    """Let the current streams of devices wait for the current device's; return them for `join`."""
    streams = [stream for device in dict.fromkeys(devices) if (stream := current(device))]
    if not streams:
        return []
    own = torch.accelerator.current_stream()
    forked = [stream for stream in streams if stream != own]
    for stream in forked:
        stream.wait_stream(own)
    return forked


def join(forked: Sequence[torch.Stream]) -> None:
    """Let the current device's current stream wait for what `fork` returned."""
    if not forked:
        return
    own = torch.accelerator.current_stream()
    for stream in forked:
        own.wait_stream(stream)


def receive(made_on: torch.Stream | None, *tensors: torch.Tensor) -> None:
    """Let the current stream wait for tensors of its device that ``made_on`` computes."""
    if made_on is None:
        return
    here = torch.accelerator.current_stream(made_on.device)
    if here != made_on:
        here.wait_stream(made_on)
        use(tensors)


def use(tensors: Iterable[torch.Tensor]) -> None:
    """Keep memory that other streams may have allocated until the current ones are done with it.

    Needed for what autograd hands over: it does not do so for gradients on other devices than the
    node's.
    """
    for tensor in tensors:
        stream = current(tensor.device)
        if stream is None:
            continue
        if tensor.layout == torch.sparse_coo:
            use([tensor._indices(), tensor._values()])
        elif tensor.layout == torch.strided:
            tensor.record_stream(stream)
