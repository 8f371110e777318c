"""torch's tests, which the fork server loads.

They take a base class from the package expecttest. None that runs here compares expected text, so
where that is missing, unittest's class stands for it.
"""

from __future__ import annotations

import importlib.util
import sys
import unittest
from types import SimpleNamespace
from typing import Any

if importlib.util.find_spec("expecttest") is None:
    missing: Any = SimpleNamespace(TestCase=unittest.TestCase)
    sys.modules["expecttest"] = missing

tests: Any = importlib.import_module("torch.testing._internal.distributed.distributed_test")
