"""A trainer of a swarm: it leads microbatches through the stages, and repeats elsewhere what fails."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laconic.errors import LaconicError, WorkerLost
from laconic.parallel.elastic.sending import Send
from laconic.parallel.elastic.swarm.wiring import BACKWARD_TASKS, Wiring, choose, join, leave, measure
from laconic.worker import ActorMessage


class SwarmTrainer:
    """Trains a model whose stages are served by peers that may fail at any call.

    It keeps what it sent of each microbatch until the step: a call that fails is repeated on another peer of the stage,
    and when a peer fails that has gradients of this step, these are computed again elsewhere. The gradients of a stage
    are summed and applied when all microbatches have passed. The sum passes through the trainer.

    - `stages`: the layers of each, first and end.
    - `send`: reaches peers.
    - `seed`: of the wiring.
    - `clock`: by which the speeds of peers are measured.
    """

    def __init__(
        self,
        stages: Sequence[tuple[int, int]],
        send: Send,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stages, self._send, self._clock = list(stages), send, clock
        self.wirings = [Wiring({}, seed=seed + stage) for stage in range(len(self.stages))]
        self.steps = 0
        self.retries = 0
        self.counted: list[Counter[int]] = []
        """Of the last step, for each stage, how often each microbatch was counted."""

    def begin(self, states: Sequence[ActorMessage], peers: Sequence[Sequence[int]]) -> None:
        """Give the first peers of each stage their layers.

        - `states`: a `take` message for each layer.
        - `peers`: of each stage.
        """
        for stage, numbers in enumerate(peers):
            for number in numbers:
                for layer in range(*self.stages[stage]):
                    self._send(number, states[layer], True)
                self.wirings[stage] = join(self.wirings[stage], number, 1.0)

    def join(self, number: int, stage: int) -> None:
        """Admit a peer, which downloads parameters and the optimizer's state from one that serves the stage."""
        for layer in range(*self.stages[stage]):
            state = self._from_any(stage, ActorMessage("give", {"layer": layer}))
            try:
                self._send(number, ActorMessage("take", {"layer": layer, **state.fields}, state.tensors), True)
            except WorkerLost:
                return
        self.wirings[stage] = join(self.wirings[stage], number, 1.0)

    def step(self, microbatches: Sequence[tuple[Tensor, Tensor]]) -> float:
        """Train on microbatches of (inputs, targets) and return the mean loss."""
        inputs = [[samples] for samples, _ in microbatches]  # of each stage
        gradients: list[dict[int, Tensor]] = [{} for _ in microbatches]  # of each stage's outputs, or targets
        owners: list[dict[int, int]] = [{} for _ in self.stages]  # of each stage, by microbatch
        loss, last = 0.0, len(self.stages) - 1
        for number, (_, targets) in enumerate(microbatches):
            for stage in range(last):
                message = self._message("forward", stage, number, inputs[number][stage])
                inputs[number].append(self._call(stage, message, 1.0)[0].tensors[0])
            gradients[number][last] = targets
            for stage in range(last, -1, -1):
                message = self._message("backward", stage, number, inputs[number][stage], gradients[number][stage])
                answer, owners[stage][number] = self._call(stage, message, BACKWARD_TASKS)
                loss += float(answer.tensors[1])
                if stage:
                    gradients[number][stage - 1] = answer.tensors[0]
        samples = sum(len(targets) for _, targets in microbatches)
        totals = [
            self._sum(
                stage,
                owners[stage],
                {k: (inputs[k][stage], gradients[k][stage]) for k in range(len(microbatches))},
            )
            for stage in range(len(self.stages))
        ]
        self.steps += 1
        self.counted = [Counter(counted) for _, counted in totals]
        for stage, (sums, _) in enumerate(totals):
            self._apply(stage, {layer: [total / samples for total in of_layer] for layer, of_layer in sums.items()})
        return loss / samples

    def _sum(
        self, stage: int, owners: dict[int, int], kept: dict[int, tuple[Tensor, Tensor]]
    ) -> tuple[dict[int, list[Tensor]], list[int]]:
        """Return the sums of a stage's gradients, each microbatch from one peer, and the microbatches that count."""
        sums: dict[int, dict[int, list[Tensor]]] = {}  # by peer and layer
        summed: dict[int, list[int]] = {}  # the microbatches in them, by peer
        while missing := sorted(set(owners.values()) - set(sums)):
            peer = missing[0]
            mine = sorted(number for number, owner in owners.items() if owner == peer)
            try:
                sums[peer] = {
                    layer: list(
                        self._send(
                            peer, ActorMessage("contribute", {"layer": layer}, (torch.tensor(mine),)), True
                        ).tensors
                    )
                    for layer in range(*self.stages[stage])
                }
                summed[peer] = mine
            except WorkerLost:
                self._lose(stage, peer)
                for number in mine:
                    message = self._message("backward", stage, number, *kept[number])
                    _, owners[number] = self._call(stage, message, BACKWARD_TASKS)
                    sums.pop(owners[number], None)  # it has contributed already, and has more now
        total = {
            layer: [
                sum(parts[1:], parts[0]) for parts in zip(*(sums[peer][layer] for peer in sorted(sums)), strict=True)
            ]
            for layer in range(*self.stages[stage])
        }
        return total, [number for peer in sums for number in summed[peer]]

    def _apply(self, stage: int, means: dict[int, list[Tensor]]) -> None:
        for peer in list(self.wirings[stage].peers):
            try:
                for layer, mean in means.items():
                    self._send(peer, ActorMessage("step", {"layer": layer, "step": self.steps}, tuple(mean)), True)
            except WorkerLost:
                self._lose(stage, peer)
        if not self.wirings[stage].peers:
            raise LaconicError(f"all peers of stage {stage} were lost in one step: go on from a checkpoint")

    def _call(self, stage: int, message: ActorMessage, tasks: float) -> tuple[ActorMessage, int]:
        """Return the answer of some peer of the stage, and the peer; a call that fails is repeated on another."""
        while True:
            peer, self.wirings[stage] = choose(self.wirings[stage], tasks, self._clock())
            begun = self._clock()
            try:
                answer = self._send(peer, message, message.kind == "backward")
            except WorkerLost:
                self._lose(stage, peer)
                self.retries += 1
                continue
            self.wirings[stage] = measure(self.wirings[stage], peer, tasks, self._clock() - begun)
            return answer, peer

    def _from_any(self, stage: int, message: ActorMessage) -> ActorMessage:
        while True:
            peer, _ = choose(self.wirings[stage], 1.0, self._clock())
            try:
                return self._send(peer, message, False)
            except WorkerLost:
                self._lose(stage, peer)

    def _lose(self, stage: int, peer: int) -> None:
        """Forget a peer, whose announcement is not renewed. If it lives, it joins as a new one: it lacks steps."""
        self.wirings[stage] = leave(self.wirings[stage], peer)

    def _message(self, kind: str, stage: int, microbatch: int, *tensors: Tensor) -> ActorMessage:
        first, end = self.stages[stage]
        return ActorMessage(kind, {"first": first, "end": end, "microbatch": microbatch}, tensors)
