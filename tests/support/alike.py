"""The same function over Gloo and over fastcomm: its values must be the same.

With two ranks, to the bit: a + b is b + a, so every order of a sum gives the same. With more ranks
the two backends add in different orders, and only values without sums are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from support.ranks import World, run_ranks
from support.tree import same_bits
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Near:
    """How far values may be apart; also those of 16 bits, which Gloo rounds in every step."""

    rtol: float = 1e-5
    atol: float = 1e-6
    short: float = 0.03

    def check(self, found: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        of_short = expected.dtype.itemsize < 4
        torch.testing.assert_close(
            found,
            expected,
            rtol=self.short if of_short else self.rtol,
            atol=self.short if of_short else self.atol,
            msg=lambda text: f"{where}: {text}",
        )


def _begin(world: World, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    world.init()
    torch.manual_seed(world.rank)
    return plain(function(world, *arguments))


def each(
    world: World, function: Callable[..., Any], names: Iterable[str], *arguments: Any
) -> dict[str, Any]:
    """Call ``function(name, world, *arguments)`` for each name in one world: starts take long."""
    results = {}
    for name in names:
        try:
            results[name] = plain(function(name, world, *arguments))
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}") from error
    return results


def plain(value: Any) -> Any:
    """Return values in a form that can be pickled and compared: for a DTensor, this rank's part."""
    if isinstance(value, DTensor):
        return {"placements": str(value.placements), "local": plain(value.to_local())}
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def assert_alike(found: Any, expected: Any, near: Near | None = None, where: str = "value") -> None:
    """Compare what `plain()` returns: to the bit, or floating-point numbers as ``near`` says."""
    assert type(found) is type(expected), where
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_alike(found[key], expected[key], near, f"{where}[{key!r}]")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, pair in enumerate(zip(found, expected, strict=True)):
            assert_alike(*pair, near, f"{where}[{index}]")
    elif isinstance(expected, torch.Tensor):
        if near is None or not expected.is_floating_point():
            assert same_bits(found, expected), f"{where}: {found} is not {expected}"
        else:
            near.check(found, expected, where)
    elif isinstance(expected, float) and near is not None:
        assert abs(found - expected) <= near.atol + near.rtol * abs(expected), where
    else:
        assert found == expected, where


def assert_ranks_alike(found: list[Any], expected: list[Any], near: Near | None = None) -> None:
    """Compare what each rank had: to the bit, or with more than two ranks as ``near`` says."""
    for rank, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_alike(ours, theirs, near if len(found) > 2 else None, f"rank {rank}")


def run_both(
    size: int, function: Callable[..., Any], *arguments: Any
) -> tuple[list[Any], list[Any]]:
    """Run ``function(world, *arguments)``, and return what the ranks had: fastcomm's, Gloo's.

    The default group is there when the function is called, and the generator has the rank as seed.
    """
    expected = run_ranks(size, _begin, function, arguments, backend="gloo")
    return run_ranks(size, _begin, function, arguments), expected


def run_alike(
    size: int, function: Callable[..., Any], *arguments: Any, near: Near | None = None
) -> list[Any]:
    """Run as `run_both` does, compare, and return what fastcomm's ranks had."""
    found, expected = run_both(size, function, *arguments)
    assert_ranks_alike(found, expected, near)
    return found


@cache
def _both(*arguments: Any) -> tuple[list[Any], list[Any]]:
    return run_both(*arguments)


def run_each(
    size: int, function: Callable[..., Any], names: Iterable[str], name: str, *arguments: Any,
    near: Near | None = None,
) -> list[Any]:  # fmt: skip
    """Run `each` once for all of the names, compare one, and return what fastcomm's ranks had."""
    both = _both(size, each, function, tuple(names), *arguments)
    found, expected = ([of_rank[name] for of_rank in ranks] for ranks in both)
    assert_ranks_alike(found, expected, near)
    return found
