"""A worker's client and its servers, driven step by step: rounds among all, members that come and go, and groups."""

from __future__ import annotations

import pytest
import torch

from laconic.architecture.ps import ParameterServer
from laconic.architecture.server.sharding import whole
from laconic.errors import WorkerLost
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage, Awaited, Gather, GatherRagged, Handle, Meets, Reduce
from tests.architecture.servers import DIGEST, SPECS, Servers, together

VALUES = [torch.arange(12.0).view(3, 4), -torch.arange(5.0)]
VECTORS = [torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor([10.0, 0.0, -3.0, 8.0, 1.0]), torch.full((5,), 2.0)]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("op", "expected"), [("sum", [13.0, 4.0, 2.0, 14.0, 8.0]), ("max", [10.0, 2.0, 3.0, 8.0, 5.0])]
)
def test_all_members_receive_what_the_servers_combined(shards: int, op: str, expected: list[float]) -> None:
    servers, how = Servers.of(shards, size=3), ParameterServer(shards=shards)
    clients = [servers.client(rank, 3) for rank in range(3)]
    together([client.join(DIGEST, VALUES if client.worker.rank == 0 else None) for client in clients])
    asked = [Reduce(vector.clone(), op) for vector in VECTORS]  # type: ignore[arg-type]
    for found in together([how.carry(r, client) for r, client in zip(asked, clients, strict=True)]):
        torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_who_is_left_stands_for_those_who_are_gone(op: str) -> None:
    """A sum is scaled to the number of all workers: it is that many times the mean of those who are left."""
    servers, how = Servers.of(2, size=3), ParameterServer(shards=2)
    clients = [servers.client(rank, 3) for rank in range(3)]
    together([client.join(DIGEST, VALUES if client.worker.rank == 0 else None) for client in clients])
    together([clients[2].leave()])
    asked = [
        how.carry(Reduce(vector.clone(), op), client) for vector, client in zip(VECTORS, clients[:2], strict=False)
    ]  # type: ignore[arg-type]
    mean = torch.tensor([5.5, 1.0, 0.0, 6.0, 3.0])
    for found in together(asked):
        torch.testing.assert_close(found, mean * 3 if op == "sum" else mean)


def test_each_round_of_a_gather_goes_to_another_shard() -> None:
    servers, how = Servers.of(3, size=2), ParameterServer(shards=3)
    clients = [servers.client(rank, 2) for rank in range(2)]
    together([client.join(DIGEST, VALUES if client.worker.rank == 0 else None) for client in clients])
    for turn in range(5):
        before = [max(actor.store.clocks.values()) for actor in servers.actors.values()]
        found = together([how.carry(Gather(VECTORS[r] + turn), clients[r]) for r in range(2)])
        for stacked in found:
            assert torch.equal(stacked, torch.stack(VECTORS[:2]) + turn)
        after = [max(actor.store.clocks.values()) for actor in servers.actors.values()]
        assert [b - a for a, b in zip(before, after, strict=True)] == [turn % 3 == k for k in range(3)]
    ragged = [GatherRagged(VECTORS[0], (2, 3)), GatherRagged(VECTORS[1][:3], (3, 0))]
    for lists in together([how.carry(ragged[r], clients[r]) for r in range(2)]):
        assert [[part.tolist() for part in parts] for parts in lists] == [[[1, 2], [3, 4, 5]], [[10, 0, -3], []]]


def test_a_round_does_not_wait_for_a_worker_that_is_lost_in_it() -> None:
    servers, how = Servers.of(2, size=3), ParameterServer(shards=2)
    clients = [servers.client(rank, 3) for rank in range(3)]
    together([client.join(DIGEST, VALUES if client.worker.rank == 0 else None) for client in clients])
    talks = [how.carry(Reduce(VECTORS[r].clone(), "mean"), clients[r]) for r in range(2)]
    waiting = [next(talk) for talk in talks]
    for actor in servers.actors.values():
        assert actor.read(0, ActorMessage("collect", {"round": 0})) is None, "the third has sent nothing yet"
        actor.lose(2)
    for talk, handle in zip(talks, waiting, strict=True):
        with pytest.raises(StopIteration) as end:
            talk.send(handles(handle)[0].wait())
        torch.testing.assert_close(end.value.value, torch.tensor([5.5, 1.0, 0.0, 6.0, 3.0]))


def test_who_joins_late_takes_part_from_the_first_round_that_is_still_open() -> None:
    servers, how = Servers.of(2, size=3), ParameterServer(shards=2)
    clients = [servers.client(rank, 3) for rank in range(3)]
    together([client.join(DIGEST, VALUES if client.worker.rank == 0 else None) for client in clients])
    together([clients[2].leave()])
    for _ in range(3):
        together([how.carry(Reduce(torch.ones(4), "sum"), client) for client in clients[:2]])
    late = servers.client(2, 3)
    together([late.join(DIGEST, None)])
    assert late.round == 3, "three rounds are over, whose results nobody expects it to collect"
    found = together(
        [how.carry(Reduce(torch.full((4,), 1.0 + r), "sum"), c) for r, c in enumerate([*clients[:2], late])]
    )
    assert all(torch.equal(each, torch.full((4,), 6.0)) for each in found)


def test_who_moves_to_another_group_leaves_its_own() -> None:
    """The servers it leaves wait for it no more; those it joins do, and it reads their values."""
    servers = Servers.of(2, size=3, groups=[[0, 1], [2]])
    clients = [servers.client(rank, 3, group=int(rank == 2)) for rank in range(3)]
    together([client.join(DIGEST, VALUES if client.worker.rank == 0 else None) for client in clients])
    servers.actors["1.0"].store.add([torch.ones(spec.shape) for spec in servers.actors["1.0"].store.specs])
    together([clients[1].move(1)])
    members = {address: actor.store.members for address, actor in servers.actors.items()}
    assert members == {"0.0": [0], "0.1": [0], "1.0": [1, 2], "1.1": [1, 2]}
    read = clients[1].pull().wait()
    flat = torch.cat([tensor.reshape(-1) for tensor in read.tensors])
    first = torch.arange(17) < servers.actors["1.0"].store.flats[torch.float32].numel()
    torch.testing.assert_close(flat, torch.cat([v.reshape(-1) for v in VALUES]) + first.float())
    assert clients[1].versions == [1, 0]
    assert sum(spec.numel for spec in SPECS) == 17


@pytest.mark.parametrize("meets", ["reduce", "gather"])
def test_a_member_sends_its_payload_once_however_many_there_are(meets: Meets) -> None:
    assert [ParameterServer(shards=2).sent_bytes(100, size, meets) for size in (2, 5)] == [100, 100]


def test_an_unknown_message_is_refused() -> None:
    with pytest.raises(Exception, match="knows no message of the kind 'sing'"):
        Servers.of(1, size=1).actors["0.0"].write(0, ActorMessage("sing"))


def test_a_client_waits_until_its_servers_have_answered() -> None:
    """First values are on all servers before training begins, and no worker ends before it is let go."""
    servers = Servers.of(2, size=1)
    client = servers.client(0, 1)
    joining = client.join(DIGEST, VALUES)
    planting = joining.send([handle.wait() for handle in handles(next(joining))])
    assert all(actor.store.initialized for actor in servers.actors.values())
    leaving = next(client.leave())
    servers.lost.add("0.1")
    for waiting in (planting, leaving):
        with pytest.raises(WorkerLost, match=r"0\.1 is gone"):
            handles(waiting)[0].wait()


def handles(awaited: Awaited) -> list[Handle]:
    return awaited if isinstance(awaited, list) else [awaited]


def test_whole_tensors_are_placed_largest_first() -> None:
    """So that the shards have equal bytes where that is possible."""
    specs = [TensorSpec(f"t{i}", (n,), torch.float32) for i, n in enumerate([1, 1, 3, 1, 6])]
    ranges = whole(specs, 2)
    assert [(r.tensor, r.start, r.stop) for r in ranges] == [(i, 0, spec.numel) for i, spec in enumerate(specs)]
    assert [sum(len(r) for r in ranges if r.shard == k) for k in range(2)] == [6, 6]
