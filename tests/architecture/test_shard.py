"""One shard as an actor: what is sent to it twice, and what a snapshot of it holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laconic.architecture.server.actor import RelayedPush, Shard
from laconic.architecture.server.store import Store
from laconic.sync.asp import ASP
from laconic.worker import ActorMessage
from tests.architecture.servers import shard_of
from tests.compression.table import compressor


class Adding(ASP):
    """Asynchronous SGD that adds what other groups' servers send."""

    def receive_relay(self, store: Store, relay: RelayedPush) -> None:
        store.add(relay.tensors)


def flat_of(shard: Shard) -> Tensor:
    (flat,) = shard.store.flat_copy()
    return flat


def test_a_relay_that_comes_again_is_not_applied_again() -> None:
    """A server that restarts repeats what it had sent: each group's relays count once, before and after a restart of
    the server that receives them."""
    shard = shard_of(Adding())
    relays = [ActorMessage("relay", {"group": g, "turn": t}, (torch.full((17,), float(v)),)) for g, t, v in
              [(1, 1, 1), (1, 1, 1), (2, 1, 10), (1, 2, 100), (1, 1, 1), (2, 1, 10)]]  # fmt: skip
    for relay in relays:
        shard.write(-1, relay)
    assert flat_of(shard).tolist() == [111.0] * 17 and shard.store.version == 3
    again = shard_of(Adding(), planted=None)
    again.restore(shard.state())
    for relay in relays:
        again.write(-1, relay)
    assert flat_of(again).tolist() == [111.0] * 17
    again.write(-1, ActorMessage("relay", {"group": 2, "turn": 2}, (torch.ones(17),)))
    assert flat_of(again).tolist() == [112.0] * 17


@pytest.mark.parametrize("down", ["none", "bf16", "int8", "topk(0.2)"])
def test_a_snapshot_holds_the_values_and_not_what_readers_are_sent(down: str) -> None:
    made = None if down == "none" else compressor(down)
    shard, again = shard_of(down=made), shard_of(down=made, planted=None)
    shard.write(1, ActorMessage("push", {"version": 0, "step": 0}, (torch.linspace(-1, 1.1, 17),)))
    shard.read(1, ActorMessage("pull", {"reads": 0}))
    again.restore(shard.state())
    assert torch.equal(flat_of(again), flat_of(shard)) and flat_of(shard).unique().numel() == 17
    assert again.store.version == 1 and again.store.clocks == {0: 0, 1: 1}
