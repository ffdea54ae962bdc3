"""The session of a model that `fully_shard` has sharded: sockets among the shards, and the runtime among replicas."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from laconic.compression.optional import takes_factors_of
from laconic.errors import ContractError, Disagreement, StrategyError
from laconic.parallel.fsdp.checkpoint import load_shards, save_shards
from laconic.parallel.fsdp.mesh import (
    MeshWorker,
    replica_process_group,
    shard_process_group,
    split_tiers,
    tiers_of,
)
from laconic.parallel.fsdp.sockets import Sockets
from laconic.runtime.broadcast import broadcast_tensors
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.session import Options, Session
from laconic.runtime.sharded.solo_group import SoloGroup
from laconic.strategy import Sentence, Strategy, Tiers
from laconic.worker import Group

OUTSIDE = "replica"
EVERY_STEP = Tiers(((Strategy.parse("bsp"), OUTSIDE),))
"""What replicas do where the strategy says nothing of them: as PyTorch, they average in every step, uncompressed."""


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
        if replicas is not None:
            _refuse_whole_tensors(replicas)
        else:
            replicas, levels = EVERY_STEP, {OUTSIDE: _outside(worker, model, strategy, owners, group)}
        self.sockets = Sockets(worker, model, shards, weights, options.seed)
        self._whole = strategy
        self.saved_elsewhere = False
        """Whether somebody else saves model and optimizer, so that a checkpoint here is of memory alone."""
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
        if self.fits(state):  # otherwise they are dealt out anew
            self.sockets.load_state_dict(state["sockets"])

    def fits(self, state: Mapping[str, Any]) -> bool:
        return bool(state["sockets"]["sizes"] == self.sockets.sizes)

    def redistribute_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        shards_before = math.prod(states[0]["sockets"]["sizes"])
        if shards_before == self.sockets.scatter.size:
            super().redistribute_state(states)
        else:
            self._forget_cut_otherwise()
        mine = torch.tensor([self.sockets.gather.tier.group.rank], device=self.parameters.device)
        owners = self.group.all_gather(mine, control=1.0).wait().view(-1).tolist()
        self.sockets.redistribute([state["sockets"] for state in states], self.group.rank, owners)

    def _forget_cut_otherwise(self) -> None:
        """Drop what replicas remembered of shards that were cut in another way, and say so."""
        tiers = [tier for tier in self.arrangement.tiers if tier.memory]
        for tier in tiers:
            tier.memory = {}
            tier.whole.memory_replaced()
        if tiers and self.worker.rank == 0:
            words = ", ".join(tier.label for tier in tiers)
            print(
                f"laconic: shards are cut in another way: what replicas remembered ({words}) is dropped",
                file=sys.stderr,
            )

    @property
    def saves_beside(self) -> bool:
        return True

    def save_beside(self, folder: Path) -> None:
        if self.saved_elsewhere:
            return
        assert self.optimizer is not None
        save_shards(folder, self.model, self.optimizer, self._replica, self.group, self.parameters.device)

    def load_beside(self, folder: Path) -> None:
        if self.saved_elsewhere:
            return
        assert self.optimizer is not None
        error: ContractError | None = None
        try:
            load_shards(folder, self.model, self.optimizer, self._replica)
        except ContractError as refusal:
            error = refusal
        failed = torch.tensor([0.0 if error is None else 1.0], device=self.parameters.device)
        anyone = bool(self.group.all_reduce(failed, "max", control=1.0).wait())
        if error is not None:
            raise error
        if anyone:  # it would wait for those that raised in its first step
            raise Disagreement(f"another rank cannot read its shards in {folder}, and says why in its log")

    @property
    def _replica(self) -> int | None:
        """The number of this worker's replica, where replicas differ."""
        tier = self.arrangement.tiers[0]
        return tier.group.rank if self.arrangement.replicas_differ else None


def _refuse_whole_tensors(replicas: Strategy) -> None:
    """Refuse, among replicas of shards, what needs whole tensors, or what an optimizer remembers of them."""
    if isinstance(replicas, Sentence):
        sync = replicas.sync.make()
        if sync.reads_optimizer_state:
            raise StrategyError(
                f"`{replicas}`: {replicas.sync} works on what the optimizer remembers of each parameter, and that of a "
                "sharded model belongs to sharded tensors; write local(8) or diloco between replicas"
            )
        if sync.skips or takes_factors_of(replicas.compressor):
            raise StrategyError(
                f"`{replicas}` looks at layers or leaves some out, and a worker with shards has a part of each; "
                "write a compression such as int8(256), or local(8)"
            )
    for part in replicas.parts_within:
        _refuse_whole_tensors(part)


def _outside(worker: MeshWorker, model: nn.Module, strategy: Strategy, owners: Group, group: Group) -> Group:
    """Return the group in which replicas average that a strategy says nothing of: those of the mesh of two dimensions
    on which the model was sharded; a worker by itself where there are none."""
    replicas = replica_process_group(model)
    if replicas is not None:
        return worker.adopt(replicas)
    if owners.size < group.size:
        shards = strategy if isinstance(strategy, Tiers) else f"[{strategy}]@shard"
        raise StrategyError(
            f"the model is sharded over {owners.size} of {group.size} workers, and nothing says how its replicas meet: "
            "give the whole mesh and a tier for the replicas, "
            f'distribute(model, optimizer, "{shards} > [bsp]@replica", mesh=mesh)'
        )
    return SoloGroup(worker.rank, worker.ledger)


def gathered_weights(text: str | None) -> Sentence:
    """Return the words in which weights are gathered."""
    sentence = Strategy.parse(text or "none")
    if not isinstance(sentence, Sentence) or sentence.sync.name != "bsp":
        raise StrategyError(f"weights are gathered as a compression says, such as int8(256), not as `{text}`")
    return sentence
