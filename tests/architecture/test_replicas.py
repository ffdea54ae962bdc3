"""A shard with a copy: writes reach both, either may be lost, and whoever is left answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from laconic.architecture.server.replicas import Replicas
from laconic.errors import WorkerLost
from laconic.worker import ActorMessage
from tests.architecture.servers import Lines, Servers, shard_of

PUSH = ActorMessage("push", {"version": 0, "step": 0}, (torch.ones(17),))
PULL = ActorMessage("pull")


def two_copies() -> tuple[Replicas, Servers]:
    servers = Servers({"first": shard_of(size=1), "second": shard_of(size=1)})
    lines: Any = Lines(0, servers)
    return Replicas(lines, ["first", "second"]), servers


def test_a_write_reaches_both_and_a_read_one() -> None:
    replicas, servers = two_copies()
    assert replicas.write(PUSH).wait().fields["clock"] == 1
    for shard in servers.actors.values():
        assert shard.store.clocks == {0: 1} and shard.store.values[1].tolist() == [-1.0] * 5
    servers.actors["second"].write(0, PUSH)
    assert replicas.read(PULL).wait().fields["version"] == 1


@pytest.mark.parametrize("lost", ["first", "second"])
def test_a_write_outlives_either_copy(lost: str) -> None:
    """The copy that is gone is forgotten, so that no later message waits for it."""
    replicas, servers = two_copies()
    replicas.write(PUSH).wait()
    written = replicas.write(PUSH)
    servers.lost.add(lost)
    (left,) = {"first", "second"} - {lost}
    assert written.wait().fields["clock"] == 2
    assert replicas.addresses == [left]
    assert replicas.write(PUSH).wait().fields["clock"] == 3 == servers.actors[left].store.clocks[0]
    assert replicas.read(PULL).wait().fields["version"] == 3


def test_a_read_is_answered_by_the_copy_that_is_left() -> None:
    replicas, servers = two_copies()
    replicas.write(PUSH).wait()
    reading = replicas.read(PULL)
    servers.lost.add("first")
    found = reading.wait()
    assert found.fields["version"] == 1 and found.tensors[0].tolist() == [-1.0] * 17
    assert replicas.addresses == ["second"]


def test_the_loss_of_the_last_copy_is_reported() -> None:
    replicas, servers = two_copies()
    writing, reading = replicas.write(PUSH), replicas.read(PULL)
    servers.lost |= {"first", "second"}
    for handle in (writing, reading):
        with pytest.raises(WorkerLost, match="second is gone"):
            handle.wait()
