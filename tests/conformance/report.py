"""Sum up results, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from conformance.exceptions import EXCEPTIONS
from conformance.launch import Result
from conformance.substitute import FASTCOMM


@dataclass
class Report:
    """The results of one backend at one number of ranks."""

    backend: str
    ranks: int
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    def outcome(self, result: Result) -> str:
        """Return the outcome: a listed test must fail; if it passes, that is a failure."""
        listed = self.backend == FASTCOMM and result.test in EXCEPTIONS
        if listed and result.outcome == "failed":
            return "expected to fail"
        return "failed" if listed and result.outcome == "passed" else result.outcome

    def counts(self) -> Counter[str]:
        return Counter(self.outcome(result) for result in self.results)

    def gloo_groups(self) -> int:
        return sum(result.gloo for result in self.results)

    def line(self, result: Result) -> str:
        outcome = self.outcome(result)
        text = f"{outcome:>8}  {result.seconds:6.1f} s  {result.test}"
        if outcome == "skipped":
            text += f": {result.reason}"
        elif outcome == "expected to fail":
            text += f": {EXCEPTIONS[result.test]}"
        elif outcome == "failed":
            text += "\n" + _indented(result.reason or "it passes: take it out of exceptions.py")
        return text

    def summary(self) -> str:
        counts = self.counts()
        executed = sum(count for outcome, count in counts.items() if outcome != "skipped")
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        return (
            f"{self.backend}, {self.ranks} ranks: {executed} executed; {told}; "
            f"{self.gloo_groups()} groups of Gloo; {self.seconds:.0f} s"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "ranks": self.ranks,
            "seconds": round(self.seconds, 1),
            "counts": dict(sorted(self.counts().items())),
            "groups of Gloo": self.gloo_groups(),
            "tests": {
                result.test: {
                    **asdict(result),
                    "outcome": self.outcome(result),
                    "seconds": round(result.seconds, 2),
                }
                for result in self.results
            },
        }


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
