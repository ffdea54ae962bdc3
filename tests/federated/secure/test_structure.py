"""Rounds of `simulate` behind secure aggregation: the mean of those that are left, its bytes and its time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laconic.errors import StrategyError
from laconic.federated.client_memory import InMemory
from laconic.federated.partition import by_quantity, dirichlet, iid
from laconic.federated.population import Population
from laconic.federated.secure.client import SEALED_BYTES
from laconic.federated.secure.keys import KEY_BYTES
from laconic.federated.secure.messages import HEADER_BYTES, set_bytes
from laconic.federated.secure.shares import SHARE_BYTES
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from tests.federated.digits import Quadratics, among_quadratics, digits

NUMEL = 64 * 32 + 32 + 32 * 10 + 10
STEP = 2.0**-14


def uneven(clients: int = 20, **about: object) -> Population:
    return Population(by_quantity(1437, clients, 1.0, seed=1), **about)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("compression", ["fixed_point(14, 32)", "fixed_point(14, 32)+ef", "fixed_point(14)"])
def test_a_round_is_fedavgs_to_the_rounding(compression: str, seed: int) -> None:
    """With `cap` above all shards the weights are FedAvg's. A client's number is wrong by less than a step of its grid,
    which 16 bits of sum make 16 times as wide for ten clients; some clients vanish, in different phases."""
    clients = uneven(lost=0.3)
    cap = int(clients.shards.sizes.max())
    plain = simulate(digits(), clients, "fedavg(clients=10)", 1, rate=0.1, seed=seed)
    secure = simulate(
        digits(),
        clients,
        f"fedavg(clients=10) / {compression} / secagg({cap=:d}, threshold=0.5)",
        1,
        rate=0.1,
        seed=seed,
    )
    taken = list(plain.steps[0].clients)
    assert secure.steps[0].clients == plain.steps[0].clients and secure.steps[0].lost == plain.steps[0].lost != ()
    step = STEP * (16 if compression == "fixed_point(14)" else 1)
    bound = step * len(taken) * cap / clients.shards.sizes[taken].sum()
    error = (plain.parameters - secure.parameters).abs().max()
    assert 0 < error < bound * (1 + 1e-4)


@pytest.mark.parametrize(
    "rule", ["fedavg(clients=3", "fedprox(clients=3, mu=0.1", "fedopt(clients=3, optimizer=momentum, server_rate=1.0"]
)
def test_rules_that_need_the_mean_alone_take_it(rule: str) -> None:
    """On losses whose gradients are linear an error of rounding grows no faster than momentum's sums: 5.61 in three
    rounds."""
    task, sizes = Quadratics(torch.tensor([[0.3, -0.2], [0.1, 0.7], [-0.9, 0.4]])), [2, 5, 9]
    plain = simulate(task, among_quadratics(sizes), f"{rule}, batch=1)", 3, rate=0.1)
    grid = "fixed_point(14, 32, nearest)"
    secure = simulate(task, among_quadratics(sizes), f"{rule}, batch=1) / {grid} / secagg(cap=9)", 3, rate=0.1)
    assert plain.parameters.norm() > 0.1
    assert (plain.parameters - secure.parameters).abs().max() < 5.61 * STEP / 2 * 3 * 9 / sum(sizes)


def test_with_a_cap_of_one_all_clients_count_alike_and_in_between_samples_count_up_to_it() -> None:
    """Each client descends to its own target, so that the mean of targets shows the weights."""
    targets = torch.tensor([[0.25], [0.5], [1.0]])
    sizes = np.array([1, 2, 40])
    found = {}
    for cap in (1, 2, 10):
        rule = f"fedavg(clients=3, batch=1, epochs=5) / fixed_point(14, 32, nearest) / secagg({cap=:d}, threshold=1.0)"
        outcome = simulate(Quadratics(targets), among_quadratics(sizes.tolist()), rule, 1, rate=1.0)
        found[cap] = float(outcome.parameters[0])
    for cap, value in found.items():
        weights = np.minimum(sizes, cap)
        assert value == pytest.approx(float((weights * targets[:, 0].numpy()).sum() / weights.sum()), abs=10 * STEP)


def test_negative_changes_and_those_beyond_the_grid_are_cut_not_wrapped() -> None:
    targets = torch.tensor([[-1.5, 500.0], [-1.5, 500.0], [-1.0, 1.0]])
    rule = "fedavg(clients=3, batch=1, epochs=5) / fixed_point(14, 32, nearest) / secagg(threshold=1.0)"
    outcome = simulate(Quadratics(targets), among_quadratics([1, 1, 1]), rule, 1, rate=1.0)
    assert outcome.parameters.tolist() == pytest.approx([-4 / 3, 5 / 3], abs=4 * STEP)


@pytest.mark.technique("secagg", check=3)
@pytest.mark.parametrize(("clients", "bits"), [(10, 20), (16, 20), (17, 21)])
def test_bytes_of_each_client_are_those_of_the_messages_and_of_the_papers_count(clients: int, bits: int) -> None:
    """Up and down, every message with its header; the paper counts keys, shares and the vector."""
    rule = f"fedavg(clients={clients}) / fixed_point(14, 32) / secagg"
    outcome = simulate(digits(hidden=640), Population(iid(1437, clients)), rule, 1, rate=0.1)
    numel = 64 * 640 + 640 + 640 * 10 + 10 + 1
    vector, members = -(-numel * bits // 8), set_bytes(clients)
    up = 4 * HEADER_BYTES + 2 * KEY_BYTES + (clients - 1) * SEALED_BYTES + vector + clients * SHARE_BYTES
    down = 3 * HEADER_BYTES + 3 * members + clients * 2 * KEY_BYTES + (clients - 1) * SEALED_BYTES
    assert set(outcome.up_bytes.tolist()) == {up}
    assert set((outcome.down_bytes - 4 * (numel - 1)).tolist()) == {down}
    published = 2 * clients * KEY_BYTES + (5 * clients - 4) * SHARE_BYTES + vector
    assert up + down == pytest.approx(published, rel=0.01)


def test_bytes_of_those_that_vanish_depend_on_the_phase() -> None:
    clients = Population(iid(1437, 20), lost=0.3)
    outcome = simulate(
        digits(), clients, "fedavg(clients=20) / fixed_point(14, 32) / secagg(threshold=0.4)", 1, rate=0.1
    )
    step = outcome.steps[0]
    assert step.committed and len(step.lost) >= 3
    lost = outcome.up_bytes[list(step.lost)]
    keys = HEADER_BYTES + 2 * KEY_BYTES
    shared = {k: keys + HEADER_BYTES + (k - 1) * SEALED_BYTES for k in range(2, 21)}
    assert set(lost.tolist()) <= {0, keys, *shared.values()} and len(set(lost.tolist())) >= 2
    assert outcome.up_bytes[list(step.clients)].min() > NUMEL * 21 // 8


def test_phases_beside_the_vectors_take_the_time_of_their_slowest_client() -> None:
    up, down = np.linspace(1e5, 2e5, 6), np.linspace(4e5, 8e5, 6)
    clients = Population(iid(1437, 6), sample_seconds=1e-9, up_bits=up, down_bits=down)
    outcome = simulate(digits(), clients, "fedavg(clients=6) / fixed_point(14, 32) / secagg", 1, rate=0.1)
    sent = [HEADER_BYTES + x for x in (2 * KEY_BYTES, 5 * SEALED_BYTES, 0, 6 * SHARE_BYTES)]
    heard = [0, *(HEADER_BYTES + 1 + x for x in (6 * 2 * KEY_BYTES, 5 * SEALED_BYTES, 0))]
    slowest = sum(8 * (a / up[0] + b / down[0]) for a, b in zip(sent, heard, strict=True))
    vector = -(-(NUMEL + 1) * 19 // 8)
    report = 8 * (4 * NUMEL / down[0] + vector / up[0])
    assert outcome.seconds == pytest.approx(slowest + report, rel=1e-5)


def test_below_the_threshold_a_round_is_lost_and_clients_keep_their_memory() -> None:
    clients = Population(iid(1437, 10), lost=0.4)
    memory = InMemory()
    strategy = "fedavg(clients=10) / fixed_point(14, 32)+ef / secagg(threshold=0.7)"
    outcome = simulate(digits(), clients, strategy, 12, rate=0.1, client_memory=memory)
    committed = [step.committed for step in outcome.steps]
    assert any(committed) and not all(committed)
    for step in outcome.steps:
        assert step.committed == (10 - len(step.lost) >= 7)
        assert len(step.clients) + len(step.late) + len(step.lost) == 10
    assert outcome.server.version == sum(committed)
    lost = committed.index(False)
    silent = InMemory()
    simulate(digits(), clients, strategy.replace("0.7", "1.0"), 3, rate=0.1, client_memory=silent)
    assert all(silent.load(client) == {} for client in range(10))
    spent = [step.up_bytes for step in outcome.steps]
    assert spent[lost] > (spent[lost - 1] if lost else 0), "what was sent in vain is counted"


def test_late_clients_are_unmasked_as_vanished_ones() -> None:
    """Over-selected ones that come too late have shared keys: their masks must be taken off the others' vectors."""
    speeds = np.linspace(1e-3, 8e-3, 20)
    clients = Population(iid(1437, 20), sample_seconds=speeds)
    text = "fedavg(clients=10) / {} / {}(over=1.3{})"
    plain = simulate(digits(), clients, text.format("none", "server", ""), 2, rate=0.1)
    secure = simulate(digits(), clients, text.format("fixed_point(14, 32)", "secagg", ", cap=72"), 2, rate=0.1)
    assert [len(step.late) for step in secure.steps] == [3, 3]
    assert [step.clients for step in secure.steps] == [step.clients for step in plain.steps]
    assert torch.allclose(plain.parameters, secure.parameters, atol=10 * STEP)


@pytest.mark.long
def test_an_error_memory_makes_up_for_what_a_coarse_grid_rounds_away() -> None:
    """With 6 bits behind the point changes below half a step are lost for ever, and a memory adds them up."""
    clients, rounds = Population(iid(1437, 8)), 20
    text = "fedavg(clients=8, batch=0) / fixed_point(6, 32, nearest){} / secagg"
    exact = simulate(digits(), clients, "fedavg(clients=8, batch=0)", rounds, rate=0.1).parameters
    errors = [
        float((simulate(digits(), clients, text.format(memory), rounds, rate=0.1).parameters - exact).norm())
        for memory in ("", "+ef")
    ]
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        ("fedavg / none / secagg", "whole numbers"),
        ("fedavg / int8 / secagg", "whole numbers"),
        ("fedavg / topk(0.1)+ef / secagg", "whole numbers"),
        ("fedbuff(10) / fixed_point / secagg", "every client's report"),
        ("scaffold / fixed_point / secagg", "every client's report"),
        ("fednova / fixed_point / secagg", "every client's report"),
        ("dp_fedavg / fixed_point / secagg(cap=100)", "cap=1"),
    ],
)
def test_sentences_that_cannot_be_are_refused(sentence: str, why: str) -> None:
    with pytest.raises(StrategyError, match=why):
        FederatedStrategy.parse(sentence)


def test_the_word_can_be_written_and_read_again() -> None:
    said = FederatedStrategy.parse("fedavg(clients=10) / fixed_point(14, 32) / secure(threshold=0.8, cap=50)")
    assert FederatedStrategy.parse(str(said)) == said and "secagg" in str(said)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_digits_are_learned_behind_secure_aggregation_as_without_it(seed: int) -> None:
    """Skewed shards, one in ten vanishing."""
    labels = digits().labels[:1437]
    clients = Population(dirichlet(labels, 30, 0.5, seed=seed), lost=0.1)
    cap = int(clients.shards.sizes.max())
    scores = [
        simulate(digits(), clients, sentence, 30, rate=0.3, seed=seed, evaluate_every=30).steps[-1].scores["accuracy"]
        for sentence in ("fedavg(clients=10)", f"fedavg(clients=10) / fixed_point / secagg({cap=:d}, threshold=0.5)")
    ]
    assert scores[0] > 0.8 and abs(scores[1] - scores[0]) < 0.02
