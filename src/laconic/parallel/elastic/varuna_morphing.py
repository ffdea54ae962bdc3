"""Varuna's morphing: another number of stages and replicas when the number of GPUs changes, and the same training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from laconic.errors import LaconicError
from laconic.parallel.elastic.iteration import Microbatch, Piece, apply_gradients, compute_gradients
from laconic.parallel.elastic.sending import NodeLost, Send, ask
from laconic.worker import ActorMessage


@dataclass(frozen=True)
class SectionProfile:
    """What is measured once of the sections between the cut points, which are alike.

    - `sections`: how many; a stage is so many of them that all stages have equally many.
    - `forward_seconds`, `backward_seconds`: of a section, by microbatch size; with recomputation it is in the latter.
    - `send_seconds`: of a microbatch's activations between stages, by microbatch size.
    - `all_reduce_seconds`: of a section's gradients over so many replicas.
    - `most_sections`: that fit into a GPU's memory.
    """

    sections: int
    forward_seconds: Mapping[int, float]
    backward_seconds: Mapping[int, float]
    send_seconds: Mapping[int, float]
    all_reduce_seconds: Callable[[int], float]
    most_sections: int

    @property
    def microbatch(self) -> int:
        """The largest size that is efficient: no other computes more samples a second, by more than 5 %."""
        rate = {b: b / (self.forward_seconds[b] + self.backward_seconds[b]) for b in self.forward_seconds}
        return max(b for b in rate if rate[b] >= 0.95 * max(rate.values()))


@dataclass(frozen=True)
class Morph:
    """A division of the work: stages, replicas, the microbatch's size and how many of them a replica computes."""

    stages: int
    replicas: int
    microbatch: int
    microbatches: int
    seconds: float

    def shares(self, batch: int) -> list[list[range]]:
        """Return for each replica its microbatches, as ranges of the global batch: every sample once and in order. The
        last ones may be shorter, or missing."""
        cuts = [*range(0, batch, self.microbatch), batch]
        ranges = [range(a, b) for a, b in pairwise(cuts)]
        return [ranges[k * self.microbatches : (k + 1) * self.microbatches] for k in range(self.replicas)]


def morph(profile: SectionProfile, gpus: int, batch: int) -> Morph:
    """Return the fastest division of a constant global batch over so many GPUs.

    All numbers of stages that divide the sections and fit into memory are compared; GPUs that a division leaves over
    wait. The time is that of a pipeline of equal stages, (m + p - 1) slots, and the all-reduce after it.

    - `profile`: of the sections.
    - `gpus`: that there are now.
    - `batch`: the samples of a step, which never change.
    """
    found = []
    size = min(profile.microbatch, batch)
    for stages in range(1, min(profile.sections, gpus) + 1):
        each = profile.sections // stages
        if profile.sections % stages or each > profile.most_sections:
            continue
        replicas = min(gpus // stages, math.ceil(batch / size))
        count = math.ceil(batch / (replicas * size))
        slot = each * (profile.forward_seconds[size] + profile.backward_seconds[size])
        slot += 2 * profile.send_seconds[size] if stages > 1 else 0.0
        seconds = (count + stages - 1) * slot + each * profile.all_reduce_seconds(replicas)
        found.append(Morph(stages, replicas, size, count, seconds))
    if not found:
        raise LaconicError(
            f"{gpus} GPUs cannot hold {profile.sections} sections, of which one holds {profile.most_sections} at most: "
            "wait for more GPUs"
        )
    return min(found, key=lambda one: (one.seconds, one.stages))


def tensor_to_pipeline_bytes(layers: int, tensor_parallel: int) -> float:
    """Return how many times the bytes of pipelining tensor parallelism sends for each example.

    With recomputation a layer has six all-reduces of an activation, which cost 2 (t - 1) / t of it each; a stage of a
    pipeline sends an activation and receives its gradient, whatever its number of layers.
    """
    return 6 * layers * 2 * (tensor_parallel - 1) / tensor_parallel / 2


class VarunaTrainer:
    """Trains a model and goes on from the last checkpoint, with another division, when a node is lost or joins.

    A checkpoint is kept per layer, so that any number of stages can read it. The samples of a step depend on its number
    alone, so that steps which are done again after a failure see what they saw before.

    - `profile`: whose sections are the model's layers.
    - `batches`: the global batch of a step, as inputs and targets.
    - `send`: reaches nodes.
    - `checkpoint_steps`: between two checkpoints.
    """

    def __init__(
        self, profile: SectionProfile, batches: Callable[[int], Microbatch], send: Send, checkpoint_steps: int = 10
    ) -> None:
        self._profile, self._batches, self._send, self._every = profile, batches, send, checkpoint_steps
        self._checkpoint: list[ActorMessage] = []
        self._pieces: list[list[Piece]] = []
        self.nodes: list[int] = []
        self.steps = 0
        self.losses: dict[int, float] = {}
        self.counted: dict[int, Counter[int]] = {}
        """For each step how often each sample was counted, by its place in the global batch."""

    def begin(self, states: Sequence[ActorMessage], nodes: Sequence[int]) -> None:
        """Start from these states of the layers on these nodes."""
        self._checkpoint = list(states)
        self.change(nodes)

    def change(self, nodes: Sequence[int]) -> None:
        """Go on with these nodes from the last checkpoint; those that fail meanwhile are left out."""
        self.nodes = list(nodes)
        while True:
            try:
                return self._restart()
            except NodeLost as lost:
                self.nodes.remove(lost.node)

    def _restart(self) -> None:
        inputs, _ = self._batches(0)
        self.morph = morph(self._profile, len(self.nodes), len(inputs))
        each = self._profile.sections // self.morph.stages
        used = iter(self.nodes)
        self._pieces = [
            [(next(used), k * each, (k + 1) * each) for k in range(self.morph.stages)]
            for _ in range(self.morph.replicas)
        ]
        for pieces in self._pieces:
            for node, first, end in pieces:
                for layer in range(first, end):
                    ask(self._send, node, self._checkpoint[layer], True)
        self.steps = self._checkpoint[0].number("step")

    def run(self, until: int) -> None:
        """Train until so many steps are done."""
        while self.steps < until:
            try:
                self._step()
            except NodeLost as lost:
                self.change([node for node in self.nodes if node != lost.node])

    def _step(self) -> None:
        inputs, targets = self._batches(self.steps)
        shares = self.morph.shares(len(inputs))
        ranges = [samples for of_replica in shares for samples in of_replica]
        microbatches = [(inputs[r.start : r.stop], targets[r.start : r.stop]) for r in ranges]
        found = compute_gradients(self._pieces, [len(each) for each in shares], microbatches, self._send)
        for node in apply_gradients(self._pieces, found, len(inputs), self.steps + 1, self._send):
            raise NodeLost(node, "it was lost in a step")
        self.losses[self.steps] = found.loss / len(inputs)
        self.counted[self.steps] = Counter(
            sample for number, times in found.counted.items() for _ in range(times) for sample in ranges[number]
        )
        self.steps += 1
        if self.steps % self._every == 0:
            self._save()

    def _save(self) -> None:
        """Replace the checkpoint once all layers have been read; replicas share the layers among them."""
        found = {}
        for place in range(self.morph.stages):
            node, first, end = self._pieces[place % self.morph.replicas][place]
            for layer in range(first, end):
                state = ask(self._send, node, ActorMessage("give", {"layer": layer}), False)
                kept = tuple(torch.clone(tensor) for tensor in state.tensors)
                found[layer] = ActorMessage("take", {"layer": layer, **state.fields}, kept)
        self._checkpoint = [found[layer] for layer in sorted(found)]
