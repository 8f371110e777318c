"""Tests that are what each rank runs: nothing beside them starts the ranks, or names it again."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from support.ranks import World, run_ranks

# Over shared memory, and as on machines where ranks share none.
TRANSPORTS = {name: {"FASTCOMM_TRANSPORT": name} for name in ("auto", "gloo")}


@dataclass(frozen=True)
class _Body:
    """A test's own function, found by the test's name: by its own one, pickle finds the test."""

    module: str
    name: str

    def __call__(self, world: World, *arguments: Any) -> Any:
        return getattr(importlib.import_module(self.module), self.name).body(world, *arguments)


def on_ranks(
    *sizes: Any, environments: Mapping[str, Mapping[str, str]] | None = None, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test of a function that each rank calls with its `World` and the test's arguments.

    Args:
        sizes: the number of ranks; several numbers are a test each.
        environments: by name, variables that the ranks have; each is a test.
        options: of `run_ranks`.
    """
    named = dict(environments or {"": {}})
    ways: dict[str, Sequence[Any]] = {"size": sizes, "variables": list(named)}
    several = [way for way, values in ways.items() if len(values) > 1]

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(body).parameters)[1:]

        def play(**given: Any) -> None:
            size, variables = (given.get(way, values[0]) for way, values in ways.items())
            environment = {**options.get("environment", {}), **named[variables]}
            arguments = [given[name] for name in own]
            function = _Body(body.__module__, body.__name__)
            run_ranks(size, function, *arguments, **{**options, "environment": environment})

        test: Any = functools.wraps(body)(play)
        test.body = body
        taken = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in own + several]
        test.__signature__ = inspect.Signature(taken)
        for way in several:
            test = pytest.mark.parametrize(way, ways[way])(test)
        return cast(Callable[..., None], test)

    return decorate
