"""torch's tests that fail on fastcomm, each with the reason.

A test that is listed must fail: one that passes is reported until it is taken out.
"""

from __future__ import annotations

# Where torch compares a backend's name or reaches into Gloo, and only that makes the difference.
EXCEPTIONS: dict[str, str] = {
    "test_ddp_logging_data_cpu": "reads the number of threads of a ProcessGroupGloo",
}
