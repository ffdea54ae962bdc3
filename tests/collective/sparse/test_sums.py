"""SparCML's sums: exact for any supports, of the published bytes, and chosen by their costs."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import laconic
from laconic.architecture.sparcml import SparCML
from laconic.collective.sparse.choose import cheapest, expected_costs, expected_pairs
from laconic.collective.sparse.stream import delta
from laconic.collective.sparse.sums import SUMS
from laconic.network.network_tree import Network
from laconic.worker import Group, Reduce
from tests.collective.sparse.running import run, vectors


def random(numel: int, size: int, k: int, seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randperm(numel, generator=draw)[:k].sort().values for _ in range(size)]


def supports(numel: int, size: int, seed: int) -> dict[str, list[Tensor]]:
    """Random ones of several densities, and those that are worst for something."""
    everything, nothing = torch.arange(numel), torch.arange(0)
    return {
        "few": random(numel, size, max(1, numel // 20), seed),
        "half": random(numel, size, numel // 2, seed),
        "nothing": [nothing] * size,
        "everything": [everything] * size,
        "one worker": [everything, *[nothing] * (size - 1)],
        "one range": [everything[: numel // (2 * size)]] * size,
        "one place": [everything[-1:]] * size,
        "disjoint": list(everything.tensor_split(size)),
        "disjoint, interleaved": [everything[r::size] for r in range(size)],
        "unequal": [everything[: r * numel // size] for r in range(size)],
    }


@pytest.mark.technique("sparcml", check=1)
@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("name", SUMS)
def test_the_sum_is_that_of_a_dense_all_reduce(name: str, size: int) -> None:
    for seed, numel in enumerate([1, 5, 101]):
        for kind, where in supports(numel, size, seed).items():
            inputs = vectors(where, numel, seed)
            ended = run(lambda group, inputs=inputs: SUMS[name](inputs[group.rank], group), size)  # type: ignore[misc]
            assert all(torch.equal(one.result, sum(inputs, torch.zeros(numel))) for one in ended), (kind, numel)


@pytest.mark.parametrize("name", SUMS)
def test_rounded_sums_have_the_same_bits_on_all_workers(name: str) -> None:
    inputs = [x / 7 for x in vectors(random(99, 6, 20, 5), 99, 5)]
    ended = run(lambda group: SUMS[name](inputs[group.rank], group), 6)
    assert all(torch.equal(one.result, ended[0].result) for one in ended)
    torch.testing.assert_close(ended[0].result, torch.stack(inputs).sum(0))


@pytest.mark.technique("sparcml", check=1)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_bytes_hit_the_bounds_for_equal_and_for_disjoint_supports(size: int) -> None:
    """Of k pairs of eight bytes, spread evenly over the ranges, of so many that no stream becomes dense."""
    numel, k, rounds = 64 * size * size, 4 * size, int(math.log2(size))
    step = numel // k
    equal = [torch.arange(0, numel, step)] * size
    disjoint = [torch.arange(0, numel, step) + r for r in range(size)]

    def sent(name: str, where: list[Tensor]) -> list[float]:
        inputs = vectors(where, numel, 0)
        return [one.payload for one in run(lambda group: SUMS[name](inputs[group.rank], group), size)]

    share, dense = (size - 1) / size, 4 * numel * (size - 1) / size
    assert sent("recursive_double", equal) == [8 * rounds * k] * size
    assert sent("recursive_double", disjoint) == [8 * (size - 1) * k] * size
    assert sent("split_allgather", equal) == [8 * 2 * share * k] * size
    assert sent("split_allgather", disjoint) == [8 * (share * k + (size - 1) * k)] * size
    assert 8 * (share * k + (size - 1) * k) < 8 * size * k, "the published upper bound"
    assert sent("dense_allgather", equal) == [8 * share * k + dense] * size
    assert sent("dense_allgather", disjoint) == [8 * share * k + dense] * size
    for seed in range(5):
        between = [x + torch.randint(0, step, (k,), generator=torch.Generator().manual_seed(seed)) for x in equal]
        between[0] = equal[0]
        for found in sent("recursive_double", between):
            assert 8 * rounds * k <= found <= 8 * (size - 1) * k
        for found in sent("split_allgather", between):
            assert 8 * 2 * share * k <= found <= 8 * size * k


@pytest.mark.technique("sparcml", check=2)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_no_hop_sends_more_than_dense_streams_and_headers(size: int) -> None:
    numel = 120 * size
    bounds = {
        "recursive_double": int(math.log2(size)) * 4 * numel,
        "split_allgather": 2 * (size - 1) / size * 4 * numel,
        "dense_allgather": 2 * (size - 1) / size * 4 * numel,
    }
    for name, most in bounds.items():
        for kind, where in supports(numel, size, 1).items():
            if kind == "one range" and name != "recursive_double":
                continue  # its owner alone sends sums
            inputs = vectors(where, numel, 1)
            for one in run(lambda group, name=name, x=inputs: SUMS[name](x[group.rank], group), size):  # type: ignore[misc]
                assert one.payload <= most, kind
                assert one.control <= 8 * 2 * (size - 1)


@pytest.mark.technique("sparcml", check=3)
@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("size", [2, 8, 16])
def test_the_expected_union_is_that_of_random_supports(size: int, density: float) -> None:
    numel = 100_000
    k = int(density * numel)
    found = [len(torch.cat(random(numel, size, k, 100 * seed + size)).unique()) for seed in range(5)]
    assert sum(found) / 5 == pytest.approx(expected_pairs(numel, k, size), rel=0.02)


def simulated(name: str, inputs: list[Tensor], latency: float) -> float:
    network = Network.flat(len(inputs), 1e9, latency)
    return max(one.seconds for one in run(lambda group: SUMS[name](inputs[group.rank], group), len(inputs), network))


@pytest.mark.technique("sparcml", check=3)
@pytest.mark.parametrize(
    ("size", "k", "name"),
    [
        (4, 2000, "recursive_double"),
        (8, 1000, "recursive_double"),
        (8, 4000, "recursive_double"),
        (8, 7000, "split_allgather"),
        (8, 20_000, "dense_allgather"),
        (4, 45_000, "dense_allgather"),
    ],
)
def test_the_chosen_sum_is_the_cheapest_of_the_model_and_of_the_simulation(size: int, k: int, name: str) -> None:
    """Without latency, simulated times are those of bytes; supports are random, as the model has it."""
    numel = 100_000
    assert cheapest(numel, k, size, 4, 0.0) == name
    chosen, costs = cheapest(numel, k, size, 4, 0.0), expected_costs(numel, k, size, 4, 0.0)
    assert costs[chosen] == min(costs.values())
    inputs = vectors(random(numel, size, k, k), numel, k)
    seconds = {each: simulated(each, inputs, 0.0) for each in SUMS}
    assert seconds[chosen] <= 1.02 * min(seconds.values()), seconds
    for each, cost in costs.items():
        assert seconds[each] == pytest.approx(8 * cost / 1e9, rel=0.12), each  # ranges have unequal counts


@pytest.mark.technique("sparcml", check=3)
def test_the_choice_follows_the_published_rule() -> None:
    """Sparse while the sum is expected to stay below delta, recursive doubling for small data, dense beyond."""
    numel, size, latency = 10**6, 16, 1000.0
    picks = {k: cheapest(numel, k, size, 4, latency) for k in (10, 1000, 20_000, 40_000, 60_000, 500_000)}
    assert list(picks.values()) == ["recursive_double"] * 2 + ["split_allgather"] * 2 + ["dense_allgather"] * 2
    for k, pick in picks.items():
        assert (pick == "dense_allgather") == (expected_pairs(numel, k, size) >= delta(numel, 4))
    assert cheapest(numel, 40_000, size, 4, 1e7) == "recursive_double", "latency decides for fewer rounds"


@pytest.mark.technique("sparcml", check=3)
@pytest.mark.parametrize(("k", "name"), [(3, "recursive_double"), (1400, "split_allgather"), (3000, "dense_allgather")])
def test_workers_choose_by_the_largest_count_of_all(k: int, name: str) -> None:
    """Also those that have less: all choose the same, and send that sum's bytes."""
    numel, size = 20_000, 8
    inputs = vectors([*random(numel, size - 1, k // 3, 0), *random(numel, 1, k, 1)], numel, 0)
    made = SparCML(latency_bytes=60)
    assert cheapest(numel, k, size, 4, 60) == name

    def summed(architecture: SparCML, group: Group) -> Any:
        return architecture.carry(Reduce(inputs[group.rank].clone(), "sum"), group)

    found, expected = (run(partial(summed, each), size) for each in (made, SparCML(sum=name)))
    assert [one.payload for one in found] == [one.payload for one in expected]
    assert all(torch.equal(one.result, sum(inputs, torch.zeros(numel))) for one in found)


def trained(sentence: str) -> tuple[list[Tensor], float]:
    torch.manual_seed(laconic.rank())
    model: Any = torch.nn.Linear(70, 50)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, sentence)
    for _ in range(4):
        model(torch.randn(3, 70)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    sent = optimizer.session.worker.ledger.sent_bytes()
    return [p.detach().clone() for p in model.parameters()], sent


@pytest.mark.parametrize("knobs", ["", *(f"(sum={name})" for name in SUMS)])
def test_sparse_sums_train_as_gathered_messages_do(knobs: str) -> None:
    plain = laconic.simulate(lambda: trained("bsp / topk(0.02)+ef"), 4).results
    found = laconic.simulate(lambda: trained(f"bsp / topk(0.02)+zero_filled+ef / sparcml{knobs}"), 4).results
    dense = laconic.simulate(lambda: trained("bsp / topk(0.02)+zero_filled+ef"), 4).results
    for parameters, sent in found:
        for ours, first, theirs in zip(parameters, found[0][0], plain[0][0], strict=True):
            assert torch.equal(ours, first)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
        assert sent < dense[0][1] * (0.8 if "dense" in knobs else 0.4), "initial parameters included"
