"""Order of collectives in compiled graphs: the one in which a program calls them, on every rank.

Tracing makes of a program what its results depend on. Of two collectives that do not depend on each
other the inductor would issue that one first whose result is read first, or whose memory is free
again; and ranks that read different things, or of which one is not compiled, would then sum what
does not belong together.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._ops import OpOverload

_ordered: set[OpOverload] = set()
# Operators that call graphs of their own, which may hold collectives.
_WITH_GRAPHS = [
    getattr(torch.ops.higher_order, name)
    for name in ("cond", "while_loop", "while_loop_stack_output", "invoke_subgraph")
    if hasattr(torch.ops.higher_order, name)
]
for _caller in _WITH_GRAPHS:
    torch.fx.node.has_side_effect(_caller)
# The buffer of the collective that was lowered last, by graph.
_last: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def keep_order(operator: OpOverload) -> None:
    """Have torch.compile and AOTInductor leave its place among other such operators alone.

    It is called, too, where nothing is read of what it returns.
    """
    torch.fx.node.has_side_effect(operator)
    _ordered.add(operator)


def while_tracing() -> None:
    """Teach the inductor the order: to be called by fake kernels.

    The inductor is not imported for those who do not use it. Whoever lowers a graph has traced it
    before, with the inductor imported.
    """
    if "torch._inductor.lowering" in sys.modules:
        _teach_inductor()


@functools.cache
def _teach_inductor() -> None:
    from torch._inductor import lowering
    from torch._inductor.fx_passes import post_grad

    post_grad.reorder_for_locality = _unless_it_moves(post_grad.reorder_for_locality)
    for operator in _ordered:
        lowering.add_needs_realized_inputs(operator)
        lowering.add_layout_constraint(operator, lowering.constrain_to_fake_tensors)
        lower = _behind_the_last(lowering.fallback_handler(operator))
        lowering.register_lowering(operator, type_promotion_kind=None)(lower)
    for caller in _WITH_GRAPHS:
        if caller in lowering.lowerings:
            lowering.lowerings[caller] = _ordered_with_its_graphs(lowering.lowerings[caller])


def _calls_ordered(module: torch.nn.Module) -> bool:
    """Return whether a graph calls such an operator, or a graph within it does."""
    graphs = [each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule)]
    return any(node.target in _ordered for graph in graphs for node in graph.nodes)


def _unless_it_moves(reorder: Callable[[Any], None]) -> Callable[[Any], None]:
    """Leave out a pass that moves nodes to where they are read. What writes stays as it is."""

    @functools.wraps(reorder)
    def reordered(graph: Any) -> None:
        if not _calls_ordered(graph.owning_module):
            reorder(graph)

    return reordered


def _always() -> bool:
    return True


def _ordered_with_its_graphs(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the place of what calls graphs, if one of them holds collectives."""
    from torch._inductor.ir import Subgraph

    in_order = _behind_the_last(lower)

    @functools.wraps(lower)
    def lowered(*arguments: Any, **options: Any) -> Any:
        graphs = [each.graph_module for each in arguments if isinstance(each, Subgraph)]
        return (in_order if any(map(_calls_ordered, graphs)) else lower)(*arguments, **options)

    return lowered


def _behind_the_last(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Have what comes from ``lower`` wait, on paper, for the collective that was lowered before."""
    from torch._inductor.ir import NoneLayout
    from torch._inductor.virtualized import V

    def lowered(*arguments: Any, **options: Any) -> Any:
        graph = V.graph
        before = len(graph.operations)
        result = lower(*arguments, **options)
        for operation in graph.operations[before:]:
            operation.has_side_effects = _always
            if operation.get_device() is None:
                # Of a barrier. Kernels in front of what has no device would be written behind it.
                operation.layout = NoneLayout(device=torch.device("cpu"))
            if graph in _last:
                graph.additional_buffer_deps[operation.get_operation_name()].add(_last[graph])
        _last[graph] = graph.operations[-1].get_name()
        return result

    return lowered
