"""Functions that reach the ranks, and what is said of those that do not."""

from __future__ import annotations

import pickle
import sys
import threading
import types
from typing import Any

import pytest

from fastcomm._launch import pickles


def double(x: int) -> int:
    return 2 * x


@pytest.fixture(params=[False, True], ids=["plain", "cloudpickle"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        pytest.importorskip("cloudpickle")
    else:
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
    return bool(request.param)


def there(function: Any, *args: Any) -> Any:
    loaded, given = pickles.load_function(memoryview(pickles.dumps_function(function, args)))
    return loaded(*given)


def test_functions_of_modules_need_nothing(cloud: bool) -> None:
    assert there(double, 21) == 42


def test_functions_without_a_module_need_cloudpickle(
    cloud: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = 40

    def add(x: int) -> int:
        return base + x

    of_a_cell = types.FunctionType(double.__code__, {}, "of_a_cell")
    of_a_cell.__module__, of_a_cell.__qualname__ = "__main__", "of_a_cell"
    if cloud:
        assert there(add, 2) == 42 and there(of_a_cell, 4) == 8
        return
    for function in (add, of_a_cell):
        with pytest.raises(pickles.PickleError, match="pip install cloudpickle") as raised:
            there(function, 2)
        assert len(str(raised.value).splitlines()) == 1 and function.__name__ in str(raised.value)


def test_arguments_that_cannot_be_pickled_are_an_error(cloud: bool) -> None:
    with pytest.raises(pickles.PickleError, match="double or its arguments cannot be pickled"):
        pickles.dumps_function(double, (threading.Lock(),))


def test_a_name_that_a_rank_does_not_find() -> None:
    data = pickle.dumps((double, ())).replace(b"double", b"triple")
    with pytest.raises(pickles.PickleError, match="cannot be unpickled in a rank: AttributeError"):
        pickles.load_function(memoryview(data))
