"""What a survey of some steps finds, counted by hand."""

from __future__ import annotations

import torch
from torch import nn

from fastcomm._advise.facts import Survey


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.last = nn.Linear(4, 2, bias=False)
        self.unused = nn.Parameter(torch.ones(100))
        self.register_buffer("kept", torch.ones(5))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.first(data).sigmoid())
        return result


def test_a_model() -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    survey = Survey(model, optimizer)
    survey.begin()
    for _ in range(3):
        optimizer.zero_grad()
        with torch.no_grad():
            model(torch.ones(99, 3))  # is none of training
        model(data=torch.ones(7, 3)).sum().backward()
        optimizer.step()
    facts = survey.end(3)
    assert facts.batch == 7 and facts.passes == 3 and facts.rows == 21
    assert facts.gradients[0][0] == 4 * 8  # the last layer's is ready first
    assert sorted(size for size, _ in facts.gradients) == [4 * 4, 4 * 8, 4 * 12]
    assert [at for _, at in facts.gradients] == sorted(at for _, at in facts.gradients)
    assert facts.gradients[0][1] == 0.0 and facts.gradients[-1][1] == 1.0
    assert facts.gradient_bytes == 4 * 24
    assert facts.parameter_bytes == 4 * (24 + 100 + 5)
    # Two moments of each, and the number of steps of each of three parameters.
    assert facts.state_bytes == 2 * 4 * 24 + 3 * 4
    # The data, and what sigmoid gives, which both need; parameters are counted above.
    assert facts.saved_bytes == 4 * (7 * 3 + 7 * 4)
    assert facts.optimizer == "Adam" and facts.device == "cpu"
    assert facts.memory_bytes == 4 * (129 + 24) + facts.state_bytes + facts.saved_bytes


def test_nothing_is_left_behind() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    survey = Survey(model, optimizer)
    survey.begin()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert survey.end(1).state_bytes == 0
    assert not model._forward_pre_hooks and not model.weight._post_accumulate_grad_hooks
