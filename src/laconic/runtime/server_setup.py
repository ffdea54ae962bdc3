"""A tier's parameter server: how its shards are built, and how a worker connects to them.

Every shard is built from the user's own model and optimizer, wherever it lives: in a worker, in a server process that
ran the script up to `distribute()`, or in the virtual engine. So nothing that is needed to step has to be sent.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from laconic.architecture.ps import ParameterServer
from laconic.architecture.server.actor import ServerRule, Shard
from laconic.architecture.server.client import ServerClient
from laconic.architecture.server.replicas import Replicas
from laconic.architecture.server.store import Store
from laconic.errors import ContractError
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.meeting import Meeting
from laconic.runtime.tiers import Tier, is_collective
from laconic.strategy import Map, Phases, Sentence, Strategy, Tiers
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Home, Worker


class Shards:
    """All shards of one tier over one set of parameters: where they are, and how each is built."""

    def __init__(
        self,
        tier: Tier,
        name: str,
        specs: Sequence[TensorSpec],
        parameters: Sequence[Tensor],
        optimizer: Optimizer,
        ranks: Sequence[int],
        description: dict[str, Any],
    ) -> None:
        architecture = tier.architecture
        assert isinstance(architecture, ParameterServer)
        self.tier, self.specs, self.size = tier, specs, len(ranks)
        self._first = ranks[0]
        self._parameters, self._optimizer = parameters, optimizer
        self.ranges = architecture.divide(specs, optimizer)
        self._shards, self._copies, self._down = architecture.shards, 1 + architecture.replicas, architecture.downward()
        groups = tier.sync.groups_of(self.size) if isinstance(tier.sync, ServerRule) else [range(self.size)]
        self._groups = [[ranks[place] for place in group] for group in groups]
        self._name = name
        self.digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()

    def meeting(self, rank: int, step: int, name: str) -> Meeting:
        """Return the compressor's view of an exchange of one tensor with one worker."""
        return Meeting(rank, 1, step, name, self.tier.seed)

    @property
    def places(self) -> list[tuple[int, int, int, int]]:
        """Every actor as (home, group, shard, copy): each group has a server of the whole model, and copies live on the
        servers that follow."""
        shards = [(g, k) for g in range(len(self._groups)) for k in range(self._shards)]
        return [(number + c, g, k, c) for number, (g, k) in enumerate(shards) for c in range(self._copies)]

    def address(self, group: int, shard: int, copy: int = 0) -> str:
        """Return the address of a copy of a shard."""
        return f"{self._name}/{group}.{shard}" + "'" * copy

    def build(self, group: int, shard: int) -> Shard:
        """Build the actor of a shard."""
        mine = [r for r in self.ranges if r.shard == shard]
        members = self._groups[group]
        store = Store(mine, self.specs, self._parameters, self._optimizer, self.size, group, members)
        rule = self.tier.sync if isinstance(self.tier.sync, ServerRule) else ServerRule()
        others = [
            self.address(g, shard, c) for c in range(self._copies) for g in range(len(self._groups)) if g != group
        ]
        return Shard(store, rule, self.tier.compressor, self.meeting, self.digest, others, self._down)

    def enter(self, worker: Worker) -> ServerClient:
        """Ensure that all shards are served, join them, and copy their values into the parameters."""
        for home, g, k, c in self.places:
            worker.host(self.address(g, k, c), Home(home), partial(self.build, g, k))
        mine = next((g for g, members in enumerate(self._groups) if worker.rank in members), 0)
        groups = [
            [Replicas(worker, [self.address(g, k, c) for c in range(self._copies)]) for k in range(self._shards)]
            for g in range(len(self._groups))
        ]
        server = ServerClient(
            worker,
            groups,
            mine,
            self.ranges,
            self.specs,
            self.tier.compressor,
            self.meeting,
            self.size,
            self._optimizer,
            down=self._down,
        )
        complete([InFlight(server.join(self.digest, self._parameters if worker.rank == self._first else None))])
        for parameter, value in zip(self._parameters, server.pull_now().wait().tensors, strict=True):
            parameter.data.copy_(value)
        return server


def address_of(session: int, ranks: Sequence[int], sentence: Sentence, members: Sequence[int]) -> str:
    """Return the address of this sentence's shards for these parameters: the same on every worker and server."""
    return f"{session}/{zlib.crc32(f'{list(ranks)} {sentence} {list(members)}'.encode()):08x}"


def served_sentences(strategy: Strategy) -> list[Sentence]:
    """Return the sentences for which separate servers host shards; refuse a strategy without any."""
    if is_collective(strategy):
        raise ContractError(
            f"`{strategy}` has no server: leave --servers out, or write ps as its architecture, as in `asp / none / ps`"
        )
    if isinstance(strategy, Map | Tiers):
        raise ContractError(f"separate servers hold the whole model: write `{strategy}` without a map or tiers")
    if isinstance(strategy, Phases):
        return [sentence for part in strategy.parts_within for sentence in served_sentences(part)]
    assert isinstance(strategy, Sentence)
    return [strategy]


def refuse_levels(level: str | None) -> None:
    """Refuse a parameter server in one tier of several."""
    if level is not None:
        raise ContractError(f"a parameter server serves all workers, not the tier @{level}: write it without tiers")
