"""The planner's advice as plain values: a table of options, a verdict, and one command to copy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from laconic.cost.sharded_memory import GpuMemory
from laconic.errors import LaconicError
from laconic.reading import Count, Finite, Natural, NotNegative, Positive, Source

VERSION = 1

Objective = Literal["time", "bytes", "cost", "energy"]


class PlanError(LaconicError, ValueError):
    """An error about something that cannot be planned, or a file that is no plan."""


@dataclass(frozen=True)
class Risk:
    """The measured effect of a strategy on the final loss: its loss over that of `bsp`, with an interval over seeds.

    It was measured with as many workers as are planned for; `task` and `parameters` say on what.
    """

    loss_ratio: Finite
    low: Finite
    high: Finite
    workers: Natural
    task: str
    sentence: str  # that was measured
    parameters: Count = 0  # of the model with which it was measured


@dataclass(frozen=True)
class Option:
    """One strategy's predicted costs: times of one step in the steady state, and the bytes one worker sends in it;
    of phases the means over the run.

    `computing_seconds`, `coding_seconds` and `exposed_seconds` add up to `step_seconds`.
    """

    strategy: str
    step_seconds: Positive
    low_seconds: NotNegative  # the range of the step's time, by the measured errors of predictions
    high_seconds: NotNegative
    speed_up: NotNegative  # over the baseline
    sent_bytes: NotNegative
    computing_seconds: NotNegative
    coding_seconds: NotNegative  # of encoding and decoding, with the Python around them
    exposed_seconds: NotNegative  # of communication that nothing hides: the wire
    memory_bytes: NotNegative  # in addition to parameters, gradients and the optimizer
    lossless: bool  # the same mathematics as synchronous SGD in the precision of the gradients
    guarantee: str
    risk: Risk | None = None
    dollars: NotNegative | None = None  # of a step on all workers
    joules: NotNegative | None = None
    rank: int | None = None  # by the objective, among all strategies that were priced


@dataclass(frozen=True)
class Layer:
    """A tensor in the iteration of the recommended strategy; seconds from the start of backward."""

    name: str
    nbytes: Count
    backward_seconds: NotNegative
    ready_seconds: NotNegative
    leaves_seconds: NotNegative
    arrives_seconds: NotNegative


@dataclass(frozen=True)
class ShardedOption:
    """The predicted costs of one way to shard the model, and of plain data parallelism beside it.

    Times are those of one step, bytes those that one worker sends in it, and that leave one host. Whether it fits is
    None where the GPU's memory is not known.
    """

    title: str
    step_seconds: Positive
    serial_seconds: NotNegative | None  # where no message overlaps computing or another one; None: not told
    speed_up: NotNegative  # over the baseline
    sent_bytes: NotNegative
    leaving_bytes: NotNegative  # one host
    computing_seconds: NotNegative
    coding_seconds: NotNegative
    exposed_seconds: NotNegative
    memory: GpuMemory
    fits: bool | None
    exact: bool  # the same mathematics as plain data parallelism
    line: str  # what to write; empty for plain data parallelism


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
    - `warnings`: which of the options gather payloads from more workers than they are cheaper for than dense ones.
    - `sharded`: plain data parallelism and ways to shard the model, with the memory of a GPU.
    - `gpu_bytes`: the memory of a GPU that is left for the model, where it is known.
    - `run_steps`: the steps of the run over which phases are weighed, where they are known.
    """

    subject: str  # the script or model
    parameters: Count
    tensors: Count
    workers: Natural
    network: str
    objective: Objective
    loss_budget: NotNegative  # how much more loss is accepted; 0: the same mathematics
    baseline: Option
    options: tuple[Option, ...]
    verdict: str
    line: str  # the command to copy
    layers: tuple[Layer, ...] = ()
    priced: Count = 0  # number of strategies that were priced
    notes: tuple[str, ...] = ()  # where the figures come from
    pays: bool = False  # whether the best option beats the baseline for certain
    warnings: tuple[str, ...] = ()  # of strategies that so many workers should not use
    sharded: tuple[ShardedOption, ...] = ()  # plain data parallelism first
    gpu_bytes: NotNegative | None = None  # of a GPU's memory, for the model
    run_steps: Natural | None = None  # over which phases are weighed

    @property
    def best(self) -> Option:
        return self.options[0]

    def to_json(self) -> str:
        """Return the advice as JSON, which `laconic report` reads."""
        return json.dumps({"laconic_plan": VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "this text") -> Advice:
        """Return the advice from the `text` that `to_json` gave; errors call its source `where`."""
        source = Source(where, "plan", "`laconic plan --json` writes them", PlanError)
        table = source.json(text)
        if not isinstance(table, dict) or "laconic_plan" not in table:
            raise source.refused("it does not say that it is one")
        version = table.pop("laconic_plan")
        if version != VERSION:
            raise PlanError(f"{where} is a plan of version {version}, this laconic reads {VERSION}: plan again")
        advice = source.value(table, cls)
        if not advice.options:
            raise source.refused("it has no options")
        return advice
