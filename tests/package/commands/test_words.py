"""Words of the command line: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import argparse

import pytest
import torch

from fastcomm._commands import words
from fastcomm.bench.options import build_parser, check


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *(("bf16", "bfloat16"), ("fp16", "float16"), ("half", "float16"), ("F32", "float32")),
        *(("float", "float32"), ("double", "float64"), ("int", "int32"), ("long", "int64")),
        *(("short", "int16"), ("i8", "int8"), ("u8", "uint8"), ("torch.bfloat16", "bfloat16")),
        *(("Half", "float16"), ("cfloat", "complex64"), ("c128", "complex128"), ("bool", "bool")),
    ],
)
def test_types_of_elements(text: str, meant: str) -> None:
    assert words.dtype(text) == meant
    assert isinstance(getattr(torch, meant), torch.dtype)


def test_every_type_of_torch_is_known_by_its_name() -> None:
    for name, value in vars(torch).items():
        if isinstance(value, torch.dtype):
            assert getattr(torch, words.dtype(name)) is value
            assert getattr(torch, words.dtype(str(value))) is value


@pytest.mark.parametrize("text", ["", ",", "tensor", "float33", "nn", "float32,", "device"])
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no dtype of torch"):
        words.dtypes(text)


def test_names() -> None:
    known = ("all_reduce", "all_to_all", "reduce")
    for word in ("all_reduce", "allreduce", "all-reduce", "AllReduce", "ALL_REDUCE"):
        assert words.name_of(word, known, "operation") == "all_reduce"
    assert words.name_of("mean", ("sum", "avg"), "reduction", words.REDUCTION_ALIASES) == "avg"
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"^no operation: reduec: did you mean reduce"
    ):
        words.name_of("reduec", known, "operation")
    for word in ("", "-", "gossip"):
        with pytest.raises(argparse.ArgumentTypeError, match="known: all_reduce, all_to_all, red"):
            words.name_of(word, known, "operation")


def test_bench_understands_the_same_words() -> None:
    parser = build_parser()
    given = "--ops allreduce,All-Gather --dtype bf16,half,float16 --sizes 25MB,64kib"
    options = parser.parse_args([*given.split(), "--reduction", "mean", "--backends", "Gloo"])
    check(parser, options)
    assert options.ops == ("all_reduce", "all_gather")
    assert options.dtype == ("bfloat16", "float16")
    assert options.sizes == [64 << 10, 25 << 20]
    assert options.reduction == ("avg",) and options.backends == ("gloo",)
