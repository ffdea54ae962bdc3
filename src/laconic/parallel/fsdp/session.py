"""The session of a model that `fully_shard` has sharded: sockets among the shards, and the runtime among replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from laconic.errors import StrategyError
from laconic.parallel.fsdp.checkpoint import load_shards, save_shards
from laconic.parallel.fsdp.mesh import MeshWorker, shard_process_group, split_tiers, tiers_of
from laconic.parallel.fsdp.sockets import Sockets
from laconic.runtime.broadcast import broadcast_tensors
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.session import Options, Session
from laconic.runtime.sharded.solo_group import SoloGroup
from laconic.strategy import Sentence, Strategy, Tiers
from laconic.worker import Group

ALONE = "replica"
"""The name of the outer tier of a model that has no replicas."""


class ShardedSession(Session):
    """A session whose parameters are this worker's shards, and whose innermost tiers are PyTorch's own hooks.

    Gradients reach it averaged over the owners of shards already; what a strategy says of replicas happens here, as for
    any other model: averages in every step, local steps, DiLoCo, with the shards as parameters.
    """

    def __init__(
        self,
        worker: MeshWorker,
        model: nn.Module,
        strategy: Strategy,
        group: Group,
        levels: Mapping[str, Group],
        options: Options,
        optimizer: Optimizer,
        description: Mapping[str, Any],
        weights: Sentence,
    ) -> None:
        owners = worker.adopt(shard_process_group(model))
        names = [name for _, name in tiers_of(strategy)]
        groups = [owners if name is None else levels[name] for name in names]
        shards, replicas = split_tiers(strategy, groups, owners)
        if replicas is None:
            replicas, levels = _alone(), {ALONE: SoloGroup(worker.rank, worker.ledger)}
        self.sockets = Sockets(worker, model, shards, weights, options.seed)
        self._whole = strategy
        try:
            super().__init__(worker, model, replicas, group, levels, options, optimizer, description)
        except BaseException:
            self.sockets.remove()
            raise
        self.gradients.timed_elsewhere = True
        self._prepare_pass()
        outside = [levels[name] for _, name in tiers_of(replicas) if name is not None]
        complete([InFlight(broadcast_tensors([*self.parameters.trainable, *self.buffers()], outside))])

    def forward_left(self) -> float:
        return self.sockets.clock.forward_left()

    @property
    def syncing(self) -> bool:
        """Whether gradients are sent, which they are not inside `no_sync`."""
        return self.progress.syncing

    @syncing.setter
    def syncing(self, wanted: bool) -> None:
        self.progress.syncing = wanted
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(wanted)

    def close(self) -> None:
        super().close()
        self.sockets.remove()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sockets": self.sockets.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if state["sockets"]["size"] == self.sockets.scatter.size:  # otherwise they are dealt out anew
            self.sockets.load_state_dict(state["sockets"])

    def redistribute_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        super().redistribute_state(states)
        self.sockets.redistribute([state["sockets"] for state in states], self.group.rank, self.group.size)

    @property
    def saves_beside(self) -> bool:
        return True

    def save_beside(self, folder: Path) -> None:
        assert self.optimizer is not None
        save_shards(folder, self.model, self.optimizer, self._replica)

    def load_beside(self, folder: Path) -> None:
        assert self.optimizer is not None
        load_shards(folder, self.model, self.optimizer, self._replica)

    @property
    def _replica(self) -> int | None:
        """The number of this worker's replica, where replicas differ."""
        tier = self.arrangement.tiers[0]
        return tier.group.rank if self.arrangement.replicas_differ else None


def _alone() -> Strategy:
    return Tiers(((Strategy.parse("bsp"), ALONE),))


def gathered_weights(text: str | None) -> Sentence:
    """Return the words in which weights are gathered."""
    sentence = Strategy.parse(text or "none")
    if not isinstance(sentence, Sentence) or sentence.sync.name != "bsp":
        raise StrategyError(f"weights are gathered as a compression says, such as int8(256), not as `{text}`")
    return sentence
