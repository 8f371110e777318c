"""What peers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from fastcomm._measure.cases import Case
from fastcomm._measure.contenders import Contender


class Peer(Contender):
    """A contender that works on a case's buffers; ``call_of`` says what it does for a case."""

    def call_of(self, case: Case) -> Callable[[], object]:
        """Return the call to measure.

        Raises:
            NotServedError: there is none.
        """
        raise NotImplementedError

    def bind(self, case: Case) -> Callable[[], object]:
        return self.call_of(case)

    def check(self, case: Case, control: dist.ProcessGroup) -> int:
        call = self.call_of(case)
        patched: Any = case
        patched.bind = lambda _: call  # what the case itself would call
        try:
            return case.check(control, control)
        finally:
            del patched.bind
