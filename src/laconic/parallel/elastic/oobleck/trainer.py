"""Training with Oobleck's pipelines: a failure costs the iteration in which it happens, and no checkpoint is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from laconic.parallel.elastic.iteration import Microbatch, Piece, apply_gradients, compute_gradients
from laconic.parallel.elastic.oobleck.plan import Oobleck, Pipelines, instantiate, reconfigure, transfers
from laconic.parallel.elastic.sending import NodeLost, Send, ask
from laconic.worker import ActorMessage


class OobleckTrainer:
    """Trains a model on pipelines that are made again when nodes are lost or join.

    - `oobleck`: the templates.
    - `send`: reaches nodes.
    """

    def __init__(self, oobleck: Oobleck, send: Send) -> None:
        self.oobleck, self._send = oobleck, send
        self.pipelines: Pipelines = ()
        self.steps = 0
        self.reconfigurations = 0
        self.counted: Counter[int] = Counter()
        """How often each microbatch was counted in the last step."""

    @property
    def nodes(self) -> list[int]:
        return [node for pipeline in self.pipelines for node in pipeline]

    def begin(self, states: Sequence[ActorMessage], nodes: Sequence[int]) -> None:
        """Make the first pipelines, and give each node its layers.

        - `states`: a `take` message for each layer.
        """
        self.pipelines = instantiate(self.oobleck, nodes)
        for node, layers in self.oobleck.holders(self.pipelines).items():
            for layer in layers:
                ask(self._send, node, states[layer], True)

    def step(self, microbatches: Sequence[Microbatch]) -> float:
        """Train on the global batch and return the mean loss; an iteration that a failure breaks is done again."""
        samples = sum(len(targets) for _, targets in microbatches)
        while True:
            shares = self.oobleck.shares([len(pipeline) for pipeline in self.pipelines])
            try:
                found = compute_gradients(self._pieces(), shares, microbatches, self._send)
            except NodeLost as lost:
                self.lose({lost.node})
                continue
            self.steps += 1
            self.counted = found.counted
            if missing := apply_gradients(self._pieces(), found, samples, self.steps, self._send):
                self.lose(missing)
            return found.loss / samples

    def lose(self, lost: Iterable[int]) -> None:
        """Make the pipelines without these nodes. Nodes that fail meanwhile are left out as well."""
        gone = set(lost)
        while True:
            try:
                return self._change(reconfigure(self.oobleck, self.pipelines, gone), gone)
            except NodeLost as more:
                gone.add(more.node)

    def join(self, nodes: Sequence[int]) -> None:
        """Make the pipelines anew with nodes that have come; those that fail meanwhile are left out."""
        gone: set[int] = set()
        while True:
            everyone = [node for node in [*self.nodes, *nodes] if node not in gone]
            try:
                return self._change(instantiate(self.oobleck, everyone), gone)
            except NodeLost as more:
                gone.add(more.node)

    def _change(self, after: Pipelines, gone: set[int]) -> None:
        """Copy the layers that nodes lack; only when all have theirs, let them drop what they need no more."""
        for layer, source, node in transfers(self.oobleck, self.pipelines, after, gone):
            state = ask(self._send, source, ActorMessage("give", {"layer": layer}), False)
            ask(self._send, node, ActorMessage("take", {"layer": layer, **state.fields}, state.tensors), True)
        self.pipelines = after
        self.reconfigurations += 1
        lost = set()
        for node, layers in self.oobleck.holders(after).items():
            try:
                ask(self._send, node, ActorMessage("keep", {"layers": sorted(layers)}), True)
            except NodeLost:
                lost.add(node)
        if lost:
            self.lose(lost)

    def _pieces(self) -> list[list[Piece]]:
        return [
            [(pipeline[stage.node], *stage.layers) for stage in self.oobleck.templates[len(pipeline)].stages]
            for pipeline in self.pipelines
        ]
