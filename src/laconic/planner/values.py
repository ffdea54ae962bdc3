"""The planner's advice as plain values: a table of options, a verdict, and one command to copy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from laconic.errors import LaconicError

VERSION = 1

Objective = Literal["time", "bytes", "cost", "energy"]


class PlanError(LaconicError, ValueError):
    """An error about something that cannot be planned, or a file that is no plan."""


@dataclass(frozen=True)
class Risk:
    """The measured effect of a strategy on the final loss: its loss over that of `bsp`, with an interval."""

    loss_ratio: float
    low: float
    high: float
    workers: int
    task: str  # on which it was measured
    sentence: str  # that was measured; it may be a nearby setting of the option's strategy


@dataclass(frozen=True)
class Option:
    """One strategy's predicted costs: times of one step in the steady state, and the bytes one worker sends in it."""

    strategy: str
    step_seconds: float
    low_seconds: float  # the range of the step's time, by the measured errors of predictions
    high_seconds: float
    speed_up: float  # over the baseline
    sent_bytes: float
    computing_seconds: float
    coding_seconds: float  # encoding and decoding
    exposed_seconds: float  # of communication in which no worker computes, encodes or decodes
    memory_bytes: float  # in addition to parameters, gradients and the optimizer
    lossless: bool  # the same mathematics as synchronous SGD in the precision of the gradients
    guarantee: str
    risk: Risk | None = None
    dollars: float | None = None  # of a step on all workers
    joules: float | None = None
    rank: int | None = None  # by the objective, among all strategies that were priced


@dataclass(frozen=True)
class Layer:
    """A tensor in the iteration of the recommended strategy; seconds from the start of backward."""

    name: str
    nbytes: int
    backward_seconds: float
    ready_seconds: float
    leaves_seconds: float
    arrives_seconds: float


@dataclass(frozen=True)
class Advice:
    """The advice for a deployment, which `laconic plan --json` prints and `laconic report` draws.

    - `subject`: the script or model, with the number of its `parameters` and `tensors`.
    - `workers`, `network`: where it is to train.
    - `objective`, `loss_budget`: what was to be minimised, and how much more loss is accepted (0: none).
    - `baseline`: tuned DDP with 16-bit gradients, to compare with.
    - `options`: strategies that laconic runs, the recommended one first.
    - `verdict`: the advice in words.
    - `line`: the command to copy.
    - `layers`: when each tensor is ready, sent and received under the recommended strategy.
    - `priced`: the number of strategies that were priced.
    - `notes`: where the figures come from.
    - `pays`: whether the best option beats the baseline for certain.
    """

    subject: str  # the script or model
    parameters: int
    tensors: int
    workers: int
    network: str
    objective: Objective
    loss_budget: float  # how much more loss is accepted; 0: the same mathematics
    baseline: Option
    options: tuple[Option, ...]
    verdict: str
    line: str  # the command to copy
    layers: tuple[Layer, ...] = ()
    priced: int = 0  # number of strategies that were priced
    notes: tuple[str, ...] = ()  # where the figures come from
    pays: bool = False  # whether the best option beats the baseline for certain

    @property
    def best(self) -> Option:
        return self.options[0]

    def to_json(self) -> str:
        """Return the advice as JSON, which `laconic report` reads."""
        return json.dumps({"laconic_plan": VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "this text") -> Advice:
        """Return the advice from the `text` that `to_json` gave; errors call its source `where`."""
        try:
            table = json.loads(text)
            version = table.pop("laconic_plan")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(f"{where} is no plan ({error}): `laconic plan --json` writes them") from error
        if version != VERSION:
            raise PlanError(f"{where} is a plan of version {version}, this laconic reads {VERSION}: plan again")
        try:
            return cls(
                **{
                    **table,
                    "baseline": _option(table["baseline"]),
                    "options": tuple(map(_option, table["options"])),
                    "layers": tuple(Layer(**row) for row in table["layers"]),
                    "notes": tuple(table["notes"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise PlanError(f"{where} does not describe a plan ({error}): plan again") from error


def _option(row: dict[str, Any]) -> Option:
    return Option(**{**row, "risk": None if row["risk"] is None else Risk(**row["risk"])})
