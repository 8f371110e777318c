"""What the advisor finds: predictions, what limits them, and a sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fastcomm._advise.predict import Prediction

ENOUGH = 1.05  # times as fast: less is not worth it, and may be none
SETTING = 1.10  # times as fast as without a setting, for which it is recommended
_MUCH = 0.3  # part of a step's time


@dataclass(frozen=True)
class Limits:
    """Why ranks are so many times as fast as one device: the product of its factors.

    Attributes:
        devices: their number.
        cores: one device's step with all cores, over that with a rank's share of them. Near
            ``1 / devices`` where one process keeps all cores busy by itself.
        sharing: a rank's step while the others rest, over that in DDP beside them, who share caches
            and the memory's bandwidth with it, without messages.
        communication: that over a step with messages.
        busy: cores that one process keeps busy, on average.
        loading: part of one device's step that waits for data.
    """

    devices: int
    cores: float
    sharing: float
    communication: float
    busy: float
    loading: float

    @property
    def main(self) -> str:
        """What takes most, in words."""
        if self.loading > _MUCH:
            return "loading data takes most of the time"
        beside = "ranks slow each other down, as they share caches and the memory's bandwidth"
        reasons = {
            "one process keeps the cores busy by itself": self.cores,
            beside: self.sharing,
            "gradients have to be exchanged": self.communication,
        }
        return min(reasons, key=lambda reason: reasons[reason])


@dataclass
class Findings:
    """What more devices bring for one model.

    Attributes:
        predictions: one device first, then ways to use more.
        settings: other settings of DDP and other optimizers, with as many ranks as were run.
        hosts: DDP on several hosts.
        limits: by number of ranks.
        pays_from: by number of ranks, rows of a batch, divided among them, from which they are
            faster than one device with all of them; infinity if there is none. By lines through two
            sizes, which say nothing of batches far from them.
        notes: what was left out, and why.
    """

    predictions: list[Prediction]
    settings: list[Prediction] = field(default_factory=list)
    hosts: list[Prediction] = field(default_factory=list)
    limits: list[Limits] = field(default_factory=list)
    pays_from: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def one(self) -> Prediction:
        """One device."""
        return self.predictions[0]

    @property
    def best(self) -> Prediction:
        """The way that trains most rows in a second."""
        return max(self.predictions, key=lambda each: each.rows_per_second)

    def times_as_fast(self, prediction: Prediction) -> float:
        """Return its rows per second over those of one device that does the same."""
        return prediction.rows_per_second / (prediction.against or self.one.rows_per_second)

    def range_of(self, prediction: Prediction) -> tuple[float, float]:
        """Return the least and the most times as fast that any turn alone would give."""
        rows = prediction.rows / self.one.rows
        times = [
            rows * alone / seconds
            for alone, seconds in zip(self.one.turns, prediction.turns, strict=True)
        ]
        return min(times), max(times)

    @property
    def sentence(self) -> str:
        """The recommendation."""
        best = self.best
        if best is not self.one and self.times_as_fast(best) >= ENOUGH:
            word = "Yes" if self.range_of(best)[0] > 1 else "Probably"
            return (
                f"{word}: {_named(best)} trains {self._times(best)} as many samples a second as "
                f"{self.one.way}, with {_rows(best)}. {self._setting(best)}"
                f"{_how(best, self.device)}"
            )
        more = max(self.predictions[1:], key=lambda each: each.rows_per_second, default=None)
        if more is None:
            return f"There is no second device: stay with {self.one.way}."
        word = "No" if self.range_of(more)[1] < ENOUGH else "Probably not"
        why = next((each.main for each in self.limits if each.devices == more.devices), "")
        return (
            f"{word}: {_named(more)} would train {self._times(more)} as many samples a second as "
            f"{self.one.way}{', since ' + why if why else ''}. Stay with {self.one.way}."
        )

    @property
    def device(self) -> str:
        """Type of the devices."""
        return str(self.environment.get("device", "cpu"))

    def _times(self, prediction: Prediction) -> str:
        low, high = self.range_of(prediction)
        return f"{self.times_as_fast(prediction):.2f} times ({low:.2f} to {high:.2f})"

    def _setting(self, best: Prediction) -> str:
        """Return what a setting of DDP adds, if it is much."""
        better = [
            each
            for each in self.settings
            if each.devices == best.devices
            and each.rows == best.rows
            and each.way.startswith("DDP, ")
            and each.seconds * SETTING < best.seconds
            and (each.measured or 0) <= (best.measured or float("inf"))
        ]
        if best.way != "DDP" or not better:
            return ""
        setting = min(better, key=lambda each: each.seconds)
        name = setting.way.removeprefix("DDP, ")
        return f"With {name} it is {self.times_as_fast(setting):.2f} times. "

    def as_json(self) -> dict[str, Any]:
        """Return all of it as values for JSON."""
        return {
            "sentence": self.sentence,
            "predictions": [
                {
                    **each.as_json(),
                    "times_as_fast": self.times_as_fast(each),
                    "range": self.range_of(each),
                }
                for each in self.predictions
            ],
            "settings": [each.as_json() for each in self.settings],
            "hosts": [each.as_json() for each in self.hosts],
            "limits": [{**asdict(each), "main": each.main} for each in self.limits],
            "pays_from": {
                str(ranks): None if rows == float("inf") else rows
                for ranks, rows in self.pays_from.items()
            },
            "notes": self.notes,
            "environment": self.environment,
        }


def _named(prediction: Prediction) -> str:
    unit = "replicas" if prediction.way == "DataParallel" else "ranks"
    return f"{prediction.way.partition(',')[0]} on {prediction.devices} {unit}"


def _rows(prediction: Prediction) -> str:
    return f"{prediction.share} rows a step on each, {prediction.rows} together"


def _how(prediction: Prediction, device: str) -> str:
    if prediction.way == "DataParallel":
        ids = list(range(prediction.devices))
        named = f'["{device}"] * {prediction.devices}' if device == "cpu" else str(ids)
        return f"Use fastcomm.nn.DataParallel(model, device_ids={named})."
    return (
        f"Use torchrun --nproc-per-node {prediction.devices} and "
        'init_process_group("fastcomm"): docs/advise.md says what to change.'
    )
