"""The batched CUDA kernels without a GPU: their sources run on the host under the execution shim.

The C++ programs (tests/cpp/shim_multi_*_test.cpp) compare every byte and every norm with a plain
reference, and with the CPU's loops. Negative control: the comparison must report a kernel that
works on after a failure. Races and bounds are looked at in the PTX (tests/ptx).
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM, SHIM_BOUNDS

# "copy" runs under AddressSanitizer, which reports reads outside of a source.
BUILDS = {"copy": SHIM_BOUNDS, "reduce": SHIM, "combine": SHIM, "gradient": SHIM}
CASES = [
    *(("copy", case, "1") for case in ("alignments", "division", "exact", "grid", "refused")),
    *(("copy", "tables", seed) for seed in "123"),
    *(("reduce", "sums", seed) for seed in "123"),
    *(("reduce", case, "1") for case in ("negative_zeros", "lies", "conversions", "refused")),
    *(("reduce", "tables", seed) for seed in "12"),
    *(("combine", case, "1") for case in ("bits", "tables", "failed", "refused")),
    *(("gradient", case, seed) for case in ("sums", "norms", "special") for seed in "123"),
    # Up to 65,537 tensors, and a tensor of 2,051 blocks: more than a tile of gradient_norm.cu.
    *(("gradient", case, "1") for case in ("joins", "long", "tables", "refused")),
]


def _program(name: str) -> str:
    return f"shim_multi_{name}_test"


@pytest.mark.parametrize(("name", "case", "seed"), CASES)
def test_every_byte(name: str, case: str, seed: str) -> None:
    programs.check(programs.get(_program(name), BUILDS[name]), case, seed)


def test_work_behind_a_failure_is_reported() -> None:
    program = programs.get(_program("combine"), SHIM)
    result = programs.run(program, "failed", control="work_on")
    assert result.returncode != 0 and "max of float32" in result.stdout, result.stdout


@pytest.mark.release
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("reduce", "sums"),
        ("combine", "bits"),
        *(("gradient", each) for each in ("sums", "special", "tables")),
    ],
)
def test_bits_with_more_values(name: str, case: str, seed: int) -> None:
    programs.check(programs.get(_program(name), SHIM), case, str(seed))
