"""Where a worker's training loop comes from: the caller's model, or a script."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastcomm._advise.told import Spec
from fastcomm._advise.work import Work


@dataclass(frozen=True)
class OfModel:
    """A loop over one batch."""

    work: Work

    def __call__(self, spec: Spec) -> None:
        work = self.work.part(spec.divisor) if spec.divisor > 1 else self.work
        optimizer = work.optimizer_or_sgd()
        work.model.train()
        while True:
            optimizer.zero_grad()
            work.loss(work.model).backward()
            optimizer.step()
