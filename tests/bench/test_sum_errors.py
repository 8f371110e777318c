"""The arithmetic of errors of sums, against values worked out by hand."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from support import script


@pytest.fixture(scope="module")
def sum_errors() -> ModuleType:
    return script.load("sum_errors")


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_exact_sum_survives_terms_that_cancel(sum_errors: ModuleType) -> None:
    terms = [torch.tensor(pair) for pair in ([2.0**100, 1.0], [1.0, 2.0**-30], [-(2.0**100), 2.0])]
    wanted = sum_errors.exact(terms)
    assert wanted.sums.tolist() == [1.0, 3 + 2.0**-30]
    assert wanted.magnitudes.tolist() == [2.0**101, 3 + 2.0**-30]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_ulp_is_the_distance_to_the_next_value(
    sum_errors: ModuleType, dtype: torch.dtype
) -> None:
    smallest = torch.finfo(dtype).smallest_normal
    values = torch.tensor([0.0, smallest / 4, smallest, 0.75, 1.0, 1.5, 3.0, 1000.0], dtype=dtype)
    width = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    above = (values.view(width) + 1).view(dtype)
    wanted = above.double() - values.double()
    assert torch.equal(sum_errors.ulp(values.double(), dtype), wanted)
    assert torch.equal(sum_errors.ulp(-values.double(), dtype), wanted)
    between = values.double() + 0.4 * wanted  # not a value of the type
    assert torch.equal(sum_errors.ulp(between, dtype), wanted)


def test_ulps_by_hand(sum_errors: ModuleType) -> None:
    assert sum_errors.ulp(f64(1.0, 255.0), torch.bfloat16).tolist() == [2.0**-7, 1.0]
    assert sum_errors.ulp(f64(0.0, 2.0), torch.float16).tolist() == [2.0**-24, 2.0**-9]


def test_errors_by_hand(sum_errors: ModuleType) -> None:
    wanted = sum_errors.Exact(sums=f64(3.0, -4.0), magnitudes=f64(12.0, 4.0))
    result = torch.tensor([3.0 + 2.0**-5, -4.0])
    found = sum_errors.errors(result, wanted, torch.bfloat16)
    scale = 12.5**0.5  # rms of 3 and 4
    assert found.rms == pytest.approx(2.0**-5 / 2**0.5 / scale, rel=1e-12)
    assert found.max == pytest.approx(2.0**-5 / scale, rel=1e-12)
    assert found.max_ulp == 2.0  # of 2^-6, between 2 and 4
    assert found.max_ulp_of_terms == 0.5  # of 2^-4, between 8 and 16
    assert sum_errors.errors(result, wanted, torch.float32).max_ulp == 2.0**17


def test_one_rounding_is_half_an_ulp_at_most(sum_errors: ModuleType) -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    wanted = sum_errors.exact([values])
    found = sum_errors.errors(values.to(torch.bfloat16), wanted, torch.bfloat16)
    assert 0.49 < found.max_ulp <= 0.5
    truncated = (values.view(torch.int32) & -65536).view(torch.float32)
    assert sum_errors.errors(truncated, wanted, torch.bfloat16).max_ulp > 0.99
