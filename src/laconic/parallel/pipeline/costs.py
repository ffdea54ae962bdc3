"""What the tasks of a pipeline take: seconds of computing by stage, and bytes between stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.errors import PipelineError
from laconic.parallel.pipeline.task import Op


@dataclass(frozen=True)
class StageCosts:
    """What each stage takes for a microbatch of the usual size.

    - `forward`, `backward`: seconds.
    - `weight`: the seconds of the backward pass that are the gradient of the weights; half of them where not given.
    - `activation_bytes`: what a stage sends to the next one; as much returns as a gradient.
    - `update`: seconds of an update, with the exchange among copies of the stage.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...] = ()
    activation_bytes: tuple[float, ...] = ()
    update: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        stages = len(self.forward)
        for name, value, length in (
            ("backward", self.backward, stages),
            ("weight", self.weight, stages),
            ("activation_bytes", self.activation_bytes, stages - 1),
            ("update", self.update, stages),
        ):
            if (value or name == "backward") and len(value) != length:
                raise PipelineError(f"{stages} stages need {length} values of {name}, not {len(value)}")

    @classmethod
    def equal(
        cls, stages: int, forward: float = 1.0, backward: float = 1.0, activation_bytes: float = 0.0
    ) -> StageCosts:
        """Return the costs of stages that all take the same."""
        return cls((forward,) * stages, (backward,) * stages, activation_bytes=(activation_bytes,) * (stages - 1))

    @classmethod
    def of(cls, forward: Sequence[float], backward: Sequence[float], **others: Sequence[float]) -> StageCosts:
        """Return the costs from sequences of any kind."""
        return cls(tuple(forward), tuple(backward), **{name: tuple(value) for name, value in others.items()})

    def seconds(self, op: Op, stage: int, size: float) -> float:
        """Return how long a task takes, with a microbatch of this size."""
        weight = self.weight[stage] if self.weight else self.backward[stage] / 2
        if op is Op.UPDATE:
            return self.update[stage] if self.update else 0.0
        whole = {
            Op.FORWARD: self.forward[stage],
            Op.RECOMPUTE: self.forward[stage],
            Op.BACKWARD: self.backward[stage],
            Op.INPUT: self.backward[stage] - weight,
            Op.WEIGHT: weight,
        }[op]
        return whole * size

    def bytes_after(self, stage: int, size: float) -> float:
        """Return the bytes that a stage sends to the next one, for a microbatch of this size."""
        return self.activation_bytes[stage] * size if self.activation_bytes else 0.0
