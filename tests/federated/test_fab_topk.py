"""Sparse gradients both ways, fair to clients, and the number of entries that is learned."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.federated.client_memory import InMemory, Memory
from laconic.federated.fair_places import fair_places
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Trainer
from laconic.federated.online_sparsity import OnlineSparsity, slope_sign
from laconic.federated.partition import by_label, by_quantity, iid
from laconic.federated.population import Population
from laconic.federated.rule import Sent
from laconic.federated.rules.fab_topk import FABTopK
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from tests.federated.digits import Quadratics, among_quadratics, digits


def uploads(seed: int, clients: int, numel: int, k: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return places and values of clients whose entries differ by a hundred in size, and their sum."""
    draw = torch.Generator().manual_seed(seed)
    dense = torch.randn(clients, numel, generator=draw) * torch.logspace(-1, 1, clients)[:, None]
    places = [x.abs().topk(k).indices.sort().values for x in dense]
    total = torch.zeros(numel)
    for x, at in zip(dense, places, strict=True):
        total[at] += x[at]
    return places, [x[at] for x, at in zip(dense, places, strict=True)], total


@pytest.mark.technique("fab_topk", check=1)
@pytest.mark.parametrize(("clients", "numel", "k"), [(3, 100, 7), (10, 1000, 55), (7, 50, 50), (20, 300, 13)])
@pytest.mark.parametrize("seed", range(3))
def test_exactly_k_places_of_which_everybody_has_its_share(seed: int, clients: int, numel: int, k: int) -> None:
    places, values, total = uploads(seed, clients, numel, k)
    chosen = fair_places(places, values, total, k)
    assert len(chosen) == k == len(chosen.unique())
    for at, value in zip(places, values, strict=True):
        own = at[value.abs().topk(k // clients).indices]
        assert torch.isin(own, chosen).all()
    if k < numel:
        largest = total.abs().topk(k).indices
        assert not torch.equal(chosen, largest.sort().values)  # the client of large entries would have most of these
    for fewer in range(1, k):
        assert torch.isin(fair_places(places, values, total, fewer), chosen).all()


@pytest.mark.technique("fab_topk", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_clients_have_computed_is_in_the_model_or_in_their_memory(seed: int) -> None:
    """Of clients some of whom miss rounds: then they are sent the model, and forget what was taken of their last."""
    computed: list[Tensor] = []
    down: list[dict[str, Tensor]] = []

    @dataclass(frozen=True)
    class Recording(FABTopK):
        def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
            old = memory.get("summed", torch.zeros(8)).clone()
            gone = memory.get("sent", torch.empty(0, dtype=torch.int64))
            sent = super().train(local, received, memory)
            down.append(dict(received))
            at = memory["parameters"]
            gradient = local.gradient(at)
            computed.append(0.2 * gradient)
            kept = memory["summed"] - 0.2 * gradient
            same = torch.isclose(kept, old, atol=1e-6)
            assert (same | torch.isin(torch.arange(8), gone)).all()  # only what was sent has been forgotten
            assert len(sent.raw["values"]) == 3
            return sent

    task = Quadratics(torch.randn(5, 8, generator=torch.Generator().manual_seed(seed)))
    kept = InMemory()
    strategy = FederatedStrategy(Recording(clients=4, batch=0, ratio=3 / 8, learned=False))
    strategy = replace(strategy, structure=replace(strategy.structure, over=1.25))
    clients = replace(among_quadratics([1] * 5), lost=0.2)
    outcome = simulate(task, clients, strategy, 25, rate=0.2, seed=seed, client_memory=kept)
    whole = [message for message in down if "model" in message]
    assert len(whole) > 5 and any("chosen" in message for message in whole)
    assert all(len(message["values"]) == 3 for message in down if "values" in message)
    assert torch.isfinite(outcome.parameters).all()


@pytest.mark.technique("fab_topk", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_sums_of_a_run_balance(seed: int) -> None:
    """The model has moved by the mean of all that clients have computed and not kept."""
    computed = torch.zeros(5, 8)

    @dataclass(frozen=True)
    class Recording(FABTopK):
        def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
            sent = super().train(local, received, memory)
            computed[local.client] += 0.2 * local.gradient(memory["parameters"])
            return sent

    task = Quadratics(torch.randn(5, 8, generator=torch.Generator().manual_seed(seed)))
    kept = InMemory()
    strategy = FederatedStrategy(Recording(clients=5, batch=0, ratio=3 / 8, learned=False))
    outcome = simulate(task, among_quadratics([1] * 5), strategy, 25, rate=0.2, seed=seed, client_memory=kept)
    left = torch.zeros(5, 8)
    chosen = outcome.server.kept["chosen"][24]
    from laconic.federated.rules.fab_topk import _read

    for client in range(5):
        memory = kept.load(client)
        summed, sent = memory["rule/summed"], memory["rule/sent"]
        summed[sent[torch.isin(sent, _read(chosen, 3, 8))]] = 0.0  # as it will when it hears of the last round
        left[client] = summed
    assert left.norm() > 0.01
    torch.testing.assert_close(-5 * outcome.parameters + left.sum(0), computed.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.technique("fab_topk", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_with_all_entries_it_is_synchronous_descent(seed: int) -> None:
    clients = Population(by_quantity(700, 4, 0.5, seed))
    outcome = simulate(digits(), clients, "fab_topk(4, batch=0, ratio=1, learned=false)", 5, rate=0.3, seed=seed)
    trainer = Trainer(digits(), seed)
    at = trainer.start
    for _ in range(5):
        at = at - 0.3 * trainer.gradient(at, np.sort(clients.shards.order))[0]
    torch.testing.assert_close(outcome.parameters, at, rtol=0, atol=1e-6)


def test_messages_have_k_entries_both_ways() -> None:
    """Places of 12 bits among 2,410 values, with four bytes for each value and for the two numbers beside them."""
    clients = Population(by_label(digits().labels.numpy(), 4, 2))
    outcome = simulate(digits(), clients, "fab_topk(4, ratio=0.05, learned=false)", 3, rate=0.1)
    k = round(0.05 * 2410)
    entries = -(-12 * k // 8) + 4 * k
    assert (outcome.up_bytes == 3 * entries).all()
    assert (outcome.down_bytes == 4 * 2410 + 4 + 2 * (entries + 8)).all()


def test_the_number_of_entries_follows_the_sign_of_the_slope() -> None:
    """On a convex cost with its least at 300, from either end, with a tenth of the signs wrong."""
    draw = np.random.default_rng(0)
    for start in (20.0, 1900.0):
        known = OnlineSparsity(start, 10.0, 2000.0)
        for _ in range(400):
            sign = np.sign(known.k - 300.0) * (1 if draw.random() < 0.9 else -1)
            known = known.moved(float(sign))
            assert known.low <= known.k <= known.high and known.probe <= known.k
        assert known.k == pytest.approx(300, rel=0.2) and known.high - known.low < 1000
    assert slope_sign(100, 2.0, 50, 1.0, before=1.0, after=0.8, probe_after=0.85) == 1.0  # half the time, 3/4 the fall
    assert slope_sign(100, 2.0, 50, 1.9, before=1.0, after=0.8, probe_after=0.85) == -1.0
    assert slope_sign(100, 2.0, 50, 1.9, before=1.0, after=1.1, probe_after=0.85) == 0.0


@pytest.mark.parametrize("seed", [0, 1])
def test_the_least_number_of_entries_is_left_again(seed: int) -> None:
    """Where sending takes no time, more entries are better; at the lower end fewer are still asked about."""
    clients = Population(iid(1437, 8, seed), up_bits=1e12, down_bits=1e12)
    outcome = simulate(digits(), clients, "fab_topk(8, ratio=0.002, least=0.002)", 30, rate=0.3, seed=seed)
    known: OnlineSparsity = outcome.server.kept["sparsity"]
    assert known.k > 50 * known.low


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_fewer_entries_are_sent_where_sending_is_dearer(seed: int) -> None:
    def learned(bits: float) -> float:
        clients = Population(iid(1437, 5, seed), up_bits=bits, down_bits=bits)
        server = simulate(digits(), clients, "fab_topk(5)", 400, rate=0.3, seed=seed).server
        return float(server.kept["sparsity"].k)

    assert learned(1e6) < 0.5 * learned(1e7)
