"""CommLib: dense inside nodes, selected values between them, each value once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic import registry
from laconic.network.network_tree import Level, Network
from laconic.runtime.spans import piece_of
from laconic.worker import Kind

DENSE = "[bsp / none / allreduce]@node > [bsp / none / allreduce]@site"


def commlib(ratio: float) -> str:
    """The named sentence with another share."""
    return str(registry.find("commlib").target).replace("mstopk(0.01,", f"mstopk({ratio},")


class Given(nn.Module):
    """A model whose gradient is the weights that it is given."""

    def __init__(self, *lengths: int) -> None:
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in lengths])

    def forward(self, weights: Tensor) -> Tensor:
        parts = weights.split([p.numel() for p in self.tensors])
        return torch.stack([(p * w).sum() for p, w in zip(self.tensors, parts, strict=True)]).sum()


def stepped(strategy: str, lengths: tuple[int, ...], steps: int) -> Any:
    """What one worker has applied in each step, its gradients, its memory by piece, and per step its payload bytes and
    seconds."""
    model: Any = Given(*lengths)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = laconic.distribute(model, optimizer, strategy)
    worker = optimizer.session.worker
    draw, applied, given, sent, seconds = torch.Generator().manual_seed(laconic.rank()), [], [], [0.0], [0.0]
    for _ in range(steps):
        weights = torch.randint(-64, 64, (sum(lengths),), generator=draw).float() * 8
        before = torch.cat([p.detach().clone() for p in model.tensors])
        model(weights).backward()
        optimizer.step()
        optimizer.zero_grad()
        applied.append(before - torch.cat([p.detach() for p in model.tensors]))
        given.append(weights)
        sent.append(worker.ledger.sent_bytes(Kind.PAYLOAD))
        seconds.append(worker.clock_seconds())
    tier = optimizer.session.partitions[0].tiers[1]
    memory = {name: state["error"].clone() for name, state in tier.memory.items() if "error" in state}
    return applied, given, memory, torch.tensor(sent).diff(), torch.tensor(seconds, dtype=torch.float64).diff()


def simulated(strategy: str, nodes: int, members: int, lengths: tuple[int, ...], steps: int) -> list[Any]:
    network = Network(nodes * members, (Level(1, 1e15), Level(members, 25e9)))
    return laconic.simulate(lambda: stepped(strategy, lengths, steps), nodes * members, network).results


@pytest.mark.technique("commlib", check=1)
@pytest.mark.parametrize(("nodes", "members"), [(2, 2), (4, 2), (2, 4)])
def test_everything_selected_is_the_dense_hierarchical_all_reduce(nodes: int, members: int) -> None:
    """Of numbers whose sums and means are exact; of lengths that no shard divides."""
    lengths = (13, 30)
    dense = simulated(DENSE, nodes, members, lengths, 2)
    found = simulated(commlib(1.0), nodes, members, lengths, 2)
    mean = torch.stack([torch.stack(given) for _, given, *_ in found]).mean(0)
    for worker in found:
        assert torch.equal(torch.stack(worker[0]), torch.stack(dense[0][0]))
        assert torch.equal(torch.stack(worker[0]), mean)


@pytest.mark.technique("commlib", check=1)
@pytest.mark.parametrize(("nodes", "members"), [(2, 2), (2, 4)])
def test_all_have_the_same_and_residuals_and_results_are_all_that_came_in(nodes: int, members: int) -> None:
    lengths, steps = (37, 45), 4
    found = simulated(commlib(0.1), nodes, members, lengths, steps)
    assert all(torch.equal(torch.stack(worker[0]), torch.stack(found[0][0])) for worker in found)
    kept, holders, starts = torch.zeros(82), torch.zeros(82), {"tensors.0": 0, "tensors.1": 37}
    for _, _, memory, *_ in found:
        for name, error in memory.items():
            begin = 0
            for part in name.split("+") if "+" in name else [name]:
                piece = piece_of(part)
                assert piece is not None, name
                first, last = starts[piece[0]] + piece[1], starts[piece[0]] + piece[2]
                kept[first:last] += error.view(-1)[begin : begin + last - first] / nodes
                holders[first:last] += 1
                begin += last - first
    assert holders.tolist() == [nodes] * 82, "every value has one residual in each node"
    came = torch.stack([torch.stack(given).sum(0) for _, given, *_ in found]).mean(0)
    assert torch.equal(torch.stack(found[0][0]).sum(0) + kept, came)
    assert 0 < int((kept != 0).sum()) < 82


@pytest.mark.technique("commlib", check=2)
@pytest.mark.parametrize(("nodes", "members"), [(2, 2), (3, 4)])
def test_bytes_are_the_published_ones(nodes: int, members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Per member and step, from the flows of the network: what crosses between nodes, and what stays inside."""
    numel, ratio, crossed, inside = 1600, 0.05, dict[int, float](), dict[int, float]()
    job = Network.job

    def counting(self: Network, what: str, tensor: Any, flow: Any, ranks: Any, *rest: Any, **more: Any) -> Any:
        for a, b, nbytes in zip(flow.sources, flow.destinations, flow.nbytes, strict=True):
            found = inside if ranks[a] // members == ranks[b] // members else crossed
            found[ranks[a]] = found.get(ranks[a], 0.0) + nbytes
        return job(self, what, tensor, flow, ranks, *rest, **more)

    monkeypatch.setattr(Network, "job", counting)

    def counted(steps: int) -> tuple[dict[int, float], dict[int, float], list[Any]]:
        crossed.clear()
        inside.clear()
        results = simulated(commlib(ratio), nodes, members, (numel,), steps)
        return dict(crossed), dict(inside), results

    (less, within, _), (more, all_within, found) = counted(2), counted(3)
    pairs, shared = 8 * (nodes - 1) * ratio * numel / members, 2 * (members - 1) / members * 4 * numel
    flags = 4.0  # whether there was a gradient, which is averaged densely beside the pairs
    for rank, worker in enumerate(found):
        assert worker[3][-1] == pytest.approx(pairs + shared)
        assert pairs <= more[rank] - less[rank] <= pairs + 2 * flags
        assert shared <= all_within[rank] - within[rank] <= shared + 2 * flags * members


@pytest.mark.long
@pytest.mark.technique("commlib", check=3)
def test_sixteen_nodes_send_6_25_times_faster_between_them() -> None:
    """Links inside take no time: a step takes what is sent at 25 Gbit/s between nodes, without latency."""
    numel = 320_000
    seconds = {
        text: max(float(worker[4][-1]) for worker in simulated(text, 16, 2, (numel,), 2))
        for text in (DENSE, commlib(0.01))
    }
    assert seconds[DENSE] / seconds[commlib(0.01)] == pytest.approx(100 / 16, rel=0.01)
