"""Decoding over two ranks: the same tokens over everything, in plain and in compiled code."""

from __future__ import annotations

import json
from pathlib import Path

import decode
import decode_ranks
import pytest
import torch
import torch.distributed as dist
from decode_model import Model, Shape, run_layers
from support.on_ranks import on_ranks
from support.ranks import World

from fastcomm._distributed.operators import OPERATORS

TINY = Shape(64, 2)


def test_a_record_of_plain_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logits are compared before anything is measured."""
    pytest.importorskip("matplotlib")
    record, plot = tmp_path / "decode.jsonl", tmp_path / "decode.png"
    words = ["--hidden", "64", "--layers", "2", "--tokens", "4", "--rounds", "2"]
    assert decode.main([*words, "--kinds", "eager", "--json", str(record)]) == 0
    measured = capsys.readouterr().out
    assert decode.main(["--show", str(record), "--plot", str(plot)]) == 0
    assert capsys.readouterr().out == measured
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows = {row["over"]: row for row in map(json.loads, record.read_text().splitlines()[1:])}
    for way in (decode_ranks.OPERATOR, decode_ranks.C10D, decode_ranks.GLOO, decode_ranks.NONE):
        assert rows[way]["samples"] == 8 and rows[way]["tokens_per_s"] > 0
        assert ("sum_us" in rows[way]) == (way != decode_ranks.NONE)
    deepspeed = rows[decode_ranks.DEEPSPEED]
    assert "tokens_per_s" in deepspeed or "DeepSpeed" in deepspeed["left_out"]


@pytest.mark.slow
@on_ranks(2)
def test_compiled_code_is_near_to_plain_code(world: World) -> None:
    world.init()
    group = dist.group.WORLD
    assert group is not None
    name: str = group.group_name

    def reduce(tensor: torch.Tensor) -> torch.Tensor:
        OPERATORS.all_reduce_(tensor, name)
        return tensor

    model = Model(TINY, world.rank, world.size)
    plain = decode_ranks.Decoder(model, reduce, run_layers).first_logits()
    compiled = torch.compile(run_layers, fullgraph=True, dynamic=False)
    found = decode_ranks.Decoder(model, reduce, compiled).first_logits(plain.argmax(-1).tolist())
    torch.testing.assert_close(found, plain, rtol=0.05, atol=0.05)
