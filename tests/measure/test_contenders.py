from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastcomm._measure.cases import CASES
from fastcomm._measure.contenders import SYMMETRIC, NotServedError, Symmetric


def test_symmetric_memory_has_all_reduce_alone() -> None:
    group: Any = SimpleNamespace(group_name="none")
    contender = Symmetric(SYMMETRIC[0], group, torch.device("cpu"))
    with pytest.raises(NotServedError, match="symm_mem_one_shot has no broadcast"):
        contender.bind(CASES["broadcast"](64, torch.float32, 0, 2))


@pytest.mark.parametrize("name", ["one_shot_all_reduce_out", "two_shot_all_reduce_"])
def test_torch_has_the_operations_that_are_called(name: str) -> None:
    pytest.importorskip("torch.distributed._symmetric_memory")
    schema = getattr(torch.ops.symm_mem, name).default._schema
    names = [argument.name for argument in schema.arguments]
    assert names[:3] == ["input", "reduce_op", "group_name"]
    assert names[3:] == (["out"] if name.endswith("_out") else [])
