"""The copies of a stage in other pipelines: their gradients are averaged as a sentence says, before each update."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from laconic.compression.optional import takes_factors_of
from laconic.errors import PipelineError
from laconic.runtime.gradient_source import GradientSink
from laconic.runtime.optimizer import DistributedOptimizer
from laconic.runtime.session import Session
from laconic.worker import Worker


class CollectedGradients:
    """A source of gradients that a stage has summed over microbatches: it reports them all at once."""

    def __init__(
        self, worker: Worker, model: nn.Module, parameters: Sequence[nn.Parameter], sink: GradientSink
    ) -> None:
        del worker, model
        self._parameters, self._sink = parameters, sink
        self._wanted = True

    def report_gradients(self, wanted: bool) -> None:
        self._wanted = wanted

    def remove(self) -> None:
        self._wanted = False

    def report(self) -> None:
        """Report the sums, and wait for the averages that take their place."""
        if not self._wanted:
            return
        for i, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                self._sink.gradient_ready(i)
        self._sink.backward_ended()


def collected_from(optimizer: Optimizer, module: nn.Module, update_seconds: float | None) -> CollectedGradients | None:
    """Return what exchanges a stage's gradients, where `laconic.distribute` returned its optimizer, and None where it
    has no copies. `update_seconds` is what a virtual clock adds for an update, where the pipeline says so."""
    if not isinstance(optimizer, DistributedOptimizer):
        return None
    session = optimizer.session
    if session.model is not module:
        raise PipelineError(
            "a stage's optimizer is distributed with another module: give distribute() the stage, and PipelineDevice "
            "what it returned"
        )
    _refuse(session)
    made: list[CollectedGradients] = []

    def make(
        worker: Worker, model: nn.Module, parameters: Sequence[nn.Parameter], sink: GradientSink
    ) -> CollectedGradients:
        made.append(CollectedGradients(worker, model, parameters, sink))
        return made[0]

    session.take_gradients_from(make, 1.0 if update_seconds is None else update_seconds)
    return made[0]


def _refuse(session: Session) -> None:
    """Refuse what acts inside the passes of a whole batch, which a stage does not have."""
    for tier in session.arrangement.tiers:
        sync, schedule = tier.sync, tier.schedule
        if schedule.measures or schedule.finishes_late:
            raise PipelineError(f"`{tier.label}`: {schedule.name} plans the passes of a whole batch; write wfbp")
        if sync.skips or sync.micro_batches > 1 or takes_factors_of(tier.compressor):
            raise PipelineError(
                f"`{tier.label}` acts on single passes, of which a stage has one for each microbatch; write bsp or "
                "local(8), with a compression such as int8 or topk(0.01)+ef"
            )
