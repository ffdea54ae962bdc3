"""The executor of pipelines: a device does its tasks in order, on real processes and on virtual workers alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from laconic.errors import PipelineError
from laconic.parallel.pipeline.boundary import BoundaryCode
from laconic.parallel.pipeline.copies import collected_from
from laconic.parallel.pipeline.costs import StageCosts
from laconic.parallel.pipeline.messages import Messages
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.stage import Stage
from laconic.parallel.pipeline.task import Op, Task
from laconic.runtime.sharded.local_shard import local_part
from laconic.runtime.undistributed import note_distributed
from laconic.worker import Group, Worker

_PARTS: dict[Op, Literal["forward", "backward", "step"]] = {
    Op.FORWARD: "forward",
    Op.RECOMPUTE: "forward",
    Op.BACKWARD: "backward",
    Op.INPUT: "backward",
    Op.WEIGHT: "backward",
    Op.UPDATE: "step",
}


class PipelineDevice:
    """One device of a pipeline.

    - `pipeline`: what all devices do.
    - `modules`: the stages that this device holds, by number.
    - `optimizers`: theirs. Where other pipelines hold the same stages, each stage and its optimizer are what
      `laconic.distribute(stage, optimizer, strategy, mesh=mesh["dp"])` returned: gradients are summed over microbatches
      here, and exchanged among the copies before each update.
    - `loss`: the loss of outputs and targets, a mean over samples.
    - `worker`: this process, or this virtual worker.
    - `group`: the devices, where they are not all workers.
    - `codes`: how what travels between stages is encoded, see `Messages`.
    - `costs`: on virtual workers, the seconds of stages where `Compute` has one second for each part of a step.
    - `in_order`: whether gradients are summed in the order of microbatches, whatever the order of the passes.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        modules: Mapping[int, nn.Module],
        optimizers: Mapping[int, Optimizer],
        loss: Callable[[Tensor, Any], Tensor],
        worker: Worker,
        group: Group | None = None,
        codes: Mapping[tuple[Literal["forward", "backward"], int], BoundaryCode] | None = None,
        costs: StageCosts | None = None,
        in_order: bool = False,
    ) -> None:
        self.group = group or worker.world
        if self.group.size != pipeline.devices:
            raise PipelineError(f"{pipeline.name} is for {pipeline.devices} devices, and there are {self.group.size}")
        held = pipeline.stages_of(self.group.rank)
        if set(modules) != set(held) or set(optimizers) != set(held):
            raise PipelineError(
                f"device {self.group.rank} of {pipeline.name} holds stages {list(held)}: give it modules and "
                f"optimizers of these, not of {sorted(modules)} and {sorted(optimizers)}"
            )
        note_distributed()
        last = pipeline.stages - 1
        self.pipeline, self.worker, self.costs, self.optimizers = pipeline, worker, costs, dict(optimizers)
        self.stages = {
            number: Stage(module, loss if number == last else None, pipeline.stashes, in_order)
            for number, module in modules.items()
        }
        self._exchanges = {
            number: collected_from(
                optimizers[number], module, None if costs is None else costs.seconds(Op.UPDATE, number, 1.0)
            )
            for number, module in modules.items()
        }
        self.messages = Messages(pipeline, self.group, codes or {})
        self.order = pipeline.orders[self.group.rank]
        self._again = {task[1:] for task in self.order if task.op is Op.RECOMPUTE}
        copies = {  # all workers ask for the same groups in the same order
            stage: worker.group([self.group.ranks[device] for device in devices])
            for stage, devices in enumerate(pipeline.holders)
            if len(devices) > 1
        }
        self._copies = {stage: copies[stage] for stage in held if stage in copies}
        self._updates: dict[int, int] = {}
        self._local: dict[Task, Tensor] = {}  # results that this device needs itself

    def step(
        self, inputs: Tensor | None = None, targets: Any = None, samples: Sequence[int] | None = None
    ) -> float | None:
        """Do all tasks once, and return the mean loss of the batch's microbatches that end on this device, if any.

        - `inputs`: the batch, where this device holds the first stage.
        - `targets`: its targets, where this device holds the last one.
        - `samples`: the numbers of the batch's samples, on all devices, where a code remembers them.
        """
        first, last = 0 in self.stages, self.pipeline.stages - 1 in self.stages
        if (first and inputs is None) or (last and targets is None):
            raise PipelineError("the device of the first stage needs inputs, and that of the last one targets")
        cut_inputs = self._cut(inputs) if first else []
        cut_targets = self._cut(targets) if last else []
        shares = self._shares(cut_inputs or cut_targets)
        for stage in self.stages.values():
            stage.losses.clear()
        self._updates = dict.fromkeys(self.stages, 0)
        self.messages.begin(None if samples is None else self._cut(samples))
        for task in self.order:
            self._do(task, cut_inputs, cut_targets, shares)
        self.messages.end()
        losses = [loss for stage in self.stages.values() for loss in stage.losses.values()]
        return float(torch.stack(losses).sum()) if losses else None

    def _do(self, task: Task, inputs: Sequence[Tensor], targets: Sequence[Any], shares: Sequence[float]) -> None:
        if task.op is Op.UPDATE:
            self._update(task.stage)
            if self._exchanges[task.stage] is None:  # otherwise the step of a distributed optimizer has noted it
                self._note_time(task)
            return
        stage, k = self.stages[task.stage], task.microbatch
        if task.op is Op.FORWARD:
            x = inputs[k] if task.stage == 0 else self._result(self.pipeline.needed(task))
            target = targets[k] if stage.is_last else None
            share = shares[k] if shares else 1.0
            scale = share if self.pipeline.flushes else self.pipeline.size_of(k)
            output = stage.forward(k, x, target, share, scale, (task.stage, k) in self._again)
            self._note_time(task)
            if not stage.is_last:
                self._keep(task, output.detach())
        elif task.op is Op.RECOMPUTE:
            stage.recompute(k)
            self._note_time(task)
        elif task.op is Op.WEIGHT:
            stage.weight_gradient(k)
            self._note_time(task)
        else:
            received = None if stage.is_last else self._result(self.pipeline.needed(task))
            passes_back = stage.backward if task.op is Op.BACKWARD else stage.input_gradient
            gradient = passes_back(k, received)
            self._note_time(task)
            if task.stage > 0:
                assert gradient is not None
                self._keep(task, gradient)

    def _note_time(self, task: Task) -> None:
        """Tell a virtual clock how long a task has taken, before its result is sent."""
        if self.costs is not None:
            size = self.pipeline.size_of(task.microbatch) if task.microbatch >= 0 else 1.0
            self.worker.computed(_PARTS[task.op], self.costs.seconds(task.op, task.stage, size))

    def _result(self, task: Task | None) -> Tensor:
        assert task is not None
        return self._local.pop(task) if task in self._local else self.messages.receive(task)

    def _keep(self, task: Task, result: Tensor) -> None:
        if task in self.messages.to:
            self.messages.send(task, result)
        else:
            self._local[task] = result

    def _update(self, number: int) -> None:
        stage, optimizer = self.stages[number], self.optimizers[number]
        stage.collect(1.0 if self.pipeline.flushes else 1 / self.pipeline.update_sizes[number][self._updates[number]])
        self._updates[number] += 1
        if number in self._copies:
            for parameter in stage.module.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._copies[number].all_reduce(local_part(parameter.grad)).wait()
        exchange = self._exchanges[number]
        if exchange is not None:
            exchange.report()
        optimizer.step()
        optimizer.zero_grad()

    def _cut(self, batch: Any) -> list[Any]:
        """Return the microbatches of a batch, in proportion to their sizes."""
        samples, sizes = len(batch), [self.pipeline.size_of(k) for k in range(self.pipeline.microbatches)]
        lengths = [samples * size / sum(sizes) for size in sizes]
        if any(abs(length - round(length)) > 1e-9 or round(length) < 1 for length in lengths):
            raise PipelineError(
                f"a batch of {samples} samples cannot be cut into microbatches of relative sizes {sizes}"
            )
        ends = list(accumulate(map(round, lengths)))
        return [batch[end - round(length) : end] for end, length in zip(ends, lengths, strict=True)]

    def _shares(self, cut: Sequence[Any]) -> list[float]:
        total = sum(map(len, cut))
        return [len(part) / total for part in cut]
