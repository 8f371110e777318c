"""What the advisor finds: predictions, what limits them, and a sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fastcomm._advise.predict import Prediction

ENOUGH = 1.05  # times as fast: less is not worth it, and may be none
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
            faster than one device with all of them; infinity if there is none.
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

    @property
    def sentence(self) -> str:
        """The recommendation."""
        best, times = self.best, self.times_as_fast(self.best)
        if best is not self.one and times >= ENOUGH:
            return f"Yes: {self._in_words(best)}, {times:.2f} times as fast as {self.one.way}."
        more = max(self.predictions[1:], key=lambda each: each.rows_per_second, default=None)
        if more is None:
            return f"There is no second device: stay with {self.one.way}."
        times = self.times_as_fast(more)
        why = next((each.main for each in self.limits if each.devices == more.devices), "")
        return (
            f"No: {_named(more)} would be {times:.2f} times as fast as {self.one.way}"
            f"{', since ' + why if why else ''}. Stay with {self.one.way}."
        )

    def _in_words(self, best: Prediction) -> str:
        if best.way == "DataParallel":
            on_cpu = self.environment.get("device") == "cpu"
            ids = '["cpu"] * ' + str(best.devices) if on_cpu else str(list(range(best.devices)))
            return f"fastcomm.nn.DataParallel(model, device_ids={ids})"
        faster = [
            each
            for each in self.settings
            if (each.devices, each.rows) == (best.devices, best.rows) and "DDP, " in each.way
        ]
        setting = min(faster, key=lambda each: each.seconds, default=None)
        how = f"DDP on {best.devices} ranks (torchrun --nproc-per-node {best.devices}, "
        how += f'init_process_group("fastcomm")), {best.share} rows a batch on each'
        if setting is not None and setting.seconds < best.seconds / ENOUGH:
            how += f", with {setting.way.removeprefix('DDP, ')}"
        return how

    def as_json(self) -> dict[str, Any]:
        """Return all of it as values for JSON."""
        return {
            "sentence": self.sentence,
            "predictions": [
                {**each.as_json(), "times_as_fast": self.times_as_fast(each)}
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
    return f"{prediction.way} on {prediction.devices} {unit}"
