"""The Trainer of transformers over fastcomm: what it logs and learns is Gloo's, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.alike import assert_ranks_alike, plain
from support.installed import needs
from support.ranks import World, run_ranks
from support.tree import same_bits
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import fastcomm

needs("transformers", "accelerate")

UPDATES, HALF, CLIPPED = 6, 3, 0.5
WORDS, LENGTH = 50, 6


class _Sentences(Dataset[dict[str, Any]]):
    """Rows of random words, labelled by the first of them."""

    def __init__(self, count: int) -> None:
        self.rows = torch.randint(WORDS, (count, LENGTH), generator=torch.Generator())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.rows[index], "labels": int(self.rows[index, 0] % 2)}


def _count(prediction: Any) -> dict[str, float]:
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"rows": len(right), "accuracy": float(right.mean())}


def _bert() -> Any:
    """Return a tiny BERT with dropout, the same on every rank."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
    )
    return BertForSequenceClassification(config)


def _divide(folder: str) -> dict[str, Any]:
    """Divide a tiny LLaMA among the ranks, take its gradients, and let it write."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
    )
    torch.manual_seed(9)
    LlamaForCausalLM(config).save_pretrained(folder)  # only the first rank writes
    dist.barrier()
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.float32)
    words = torch.arange(12).reshape(1, 12)
    loss = model(words, labels=words).loss
    loss.backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    assert any(isinstance(value, DTensor) for value in gradients.values())
    written = model.generate(words, max_new_tokens=5, do_sample=False)
    return {"loss": loss, "gradients": gradients, "written": written}


def _run(world: World, folder: str, *checkpoints: str) -> Any:
    """Train from the beginning, and from each checkpoint; then divide a model."""
    world.init()
    world.set_variables()
    trainings = [_train(world, folder, checkpoint) for checkpoint in (None, *checkpoints)]
    return plain({"trainings": trainings, "divided": _divide(f"{folder}/divided")})


def _train(world: World, folder: str, checkpoint: str | None) -> dict[str, Any]:
    """Train from the beginning or from a checkpoint, and return the second half."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=UPDATES,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        max_grad_norm=CLIPPED,
        learning_rate=0.01,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=HALF,
        save_steps=HALF,
        disable_tqdm=True,
        report_to=[],
    )
    assert arguments.world_size == world.size and dist.get_backend() == world.backend
    if world.backend == "fastcomm":
        assert fastcomm.explain("all_reduce", torch.ones(8)).native
    trainer = Trainer(
        _bert(),
        arguments,
        train_dataset=_Sentences(40),
        eval_dataset=_Sentences(7),
        compute_metrics=_count,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    assert isinstance(trainer.model_wrapped, DistributedDataParallel)
    logged = [
        {key: row[key] for key in row if not key.endswith(("runtime", "second"))}
        for row in trainer.state.log_history
        if row["step"] > HALF and "train_runtime" not in row
    ]
    assert [row["eval_rows"] for row in logged if "eval_rows" in row] == [7]
    assert max(row.get("grad_norm", 0.0) for row in logged) > CLIPPED
    assert trainer.model is not None
    return {"logged": logged, "weights": trainer.model.state_dict()}


def test_a_training_its_checkpoint_and_a_model_in_parts(tmp_path: Path) -> None:
    """The second half of a training over fastcomm also goes on from Gloo's checkpoint."""
    ours, theirs = str(tmp_path / "fastcomm"), str(tmp_path / "gloo")
    expected = run_ranks(2, _run, theirs, backend="gloo")
    found = run_ranks(2, _run, ours, f"{theirs}/checkpoint-{HALF}")
    trained = [rank["trainings"][0] for rank in expected]
    for which in range(2):  # as a whole, and resumed
        assert_ranks_alike([rank["trainings"][which] for rank in found], trained)
    first, *_, last = [row["loss"] for row in trained[0]["logged"] if "loss" in row]
    assert first != last
    assert_ranks_alike([r["divided"] for r in found], [r["divided"] for r in expected])


def _replicate(world: World) -> None:
    """Compare replicas on two slots with the module on each half."""
    model = _bert().eval()
    replicas = fastcomm.nn.parallel.DataParallel(model, ["cpu", "cpu"])
    rows = _Sentences(6).rows
    inputs = {"input_ids": rows, "labels": rows[:, 0] % 2}
    # The module first: its first call puts hooks into it, which replicas would put there each.
    halves = zip(*(value.chunk(2) for value in inputs.values()), strict=True)
    parts = [
        model(**dict(zip(inputs, half, strict=True)), output_hidden_states=True) for half in halves
    ]
    whole = replicas(**inputs, output_hidden_states=True)
    assert type(whole) is type(parts[0])
    assert same_bits(whole.loss, torch.stack([part.loss for part in parts]))
    assert same_bits(whole.logits, torch.cat([part.logits for part in parts]))
    states = zip(whole.hidden_states, *(part.hidden_states for part in parts), strict=True)
    for state, *halved in states:
        assert same_bits(state, torch.cat(halved))
    whole.loss.mean().backward()
    given = [value.grad for value in model.parameters()]
    model.zero_grad()
    torch.stack([part.loss for part in parts]).mean().backward()
    for ours, value in zip(given, model.parameters(), strict=True):
        torch.testing.assert_close(ours, value.grad)


def test_replicas_in_one_process() -> None:
    """Its models' outputs, dictionaries that leave out what is None, come back as they are."""
    run_ranks(1, _replicate)
