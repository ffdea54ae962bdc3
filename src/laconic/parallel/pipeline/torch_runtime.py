"""Pipelines on torch's own runtime of schedules, whose interface is private: nothing else here imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from laconic.errors import PipelineError
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.task import Op

_KINDS = {
    Op.FORWARD: _ComputationType.FORWARD,
    Op.BACKWARD: _ComputationType.FULL_BACKWARD,
    Op.INPUT: _ComputationType.BACKWARD_INPUT,
    Op.WEIGHT: _ComputationType.BACKWARD_WEIGHT,
}


def actions(pipeline: Pipeline) -> dict[int, list[Any]]:
    """Return the orders as torch's runtime takes them: computations alone, to which it adds messages itself."""
    if not pipeline.flushes or any(len(devices) > 1 for devices in pipeline.holders):
        raise PipelineError(
            f"torch's runtime has one device for each stage and one update at the end, unlike {pipeline.name}; "
            "PipelineDevice carries it out"
        )
    if any(task.op is Op.RECOMPUTE for order in pipeline.orders for task in order):
        raise PipelineError(
            "torch's runtime does not compute again; use torch.utils.checkpoint in the stages, or PipelineDevice"
        )
    return {
        device: [_Action(task.stage, _KINDS[task.op], task.microbatch) for task in order if task.op in _KINDS]
        for device, order in enumerate(pipeline.orders)
    }


def schedule(
    pipeline: Pipeline, stages: Sequence[PipelineStage], loss: Callable[[Tensor, Any], Tensor]
) -> _PipelineScheduleRuntime:
    """Return torch's schedule that does what a pipeline says, with `step` to call; updates are the caller's.

    - `stages`: those of this device, as torch's `PipelineStage`.
    - `loss`: the loss of outputs and targets, a mean over samples.
    """
    made = _PipelineScheduleRuntime(list(stages), pipeline.microbatches, loss_fn=loss)
    made._prepare_schedule_with_comms(actions(pipeline))
    return made
