"""Rounds on virtual clients: who takes part, when a round ends, what is sent, and what clients keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.compression.base import Compressor
from laconic.compression.none import Identity
from laconic.compression.stochastic_levels import QSGD
from laconic.errors import ContractError, LaconicError, StrategyError
from laconic.federated.client_memory import InMemory, Memory, OnDisk
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Trainer, Work
from laconic.federated.messages import Wire
from laconic.federated.partition import Shards, by_label, by_quantity, dirichlet, iid, natural
from laconic.federated.population import Daily, Population, Trace
from laconic.federated.rule import Report, Sent, Server
from laconic.federated.rules.fedavg import FedAvg
from laconic.federated.rules.fedbuff import FedBuff
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from tests.federated.digits import Quadratics, among_quadratics, digits

SIZE = 4 * (64 * 32 + 32 + 32 * 10 + 10)


def population(clients: int = 20, **about: object) -> Population:
    return Population(iid(1437, clients), **about)  # type: ignore[arg-type]


@pytest.mark.technique("fedavg", check=2)
@pytest.mark.parametrize(("clients", "rounds"), [(3, 4), (20, 2)])
def test_a_round_sends_the_model_down_and_up_once_for_each_client(clients: int, rounds: int) -> None:
    outcome = simulate(digits(), population(), f"fedavg(clients={clients}, batch=50)", rounds, rate=0.1)
    assert outcome.steps[-1].up_bytes == outcome.steps[-1].down_bytes == rounds * clients * SIZE
    taken = np.bincount([c for step in outcome.steps for c in step.clients], minlength=20)
    assert np.array_equal(outcome.up_bytes, taken * SIZE)


def test_a_round_lasts_until_its_slowest_client_has_reported() -> None:
    """Down, training and up, each at the client's own rate."""
    speeds, up, down = np.linspace(1e-3, 8e-3, 20), np.linspace(1e6, 2e6, 20), np.linspace(4e6, 8e6, 20)
    clients = population(sample_seconds=speeds, up_bits=up, down_bits=down)
    outcome = simulate(digits(), clients, "fedavg(clients=5, epochs=2)", 3, rate=0.1)
    now = 0.0
    for step in outcome.steps:
        chosen = list(step.clients)
        each = 8 * SIZE / down[chosen] + 2 * clients.shards.sizes[chosen] * speeds[chosen] + 8 * SIZE / up[chosen]
        now += each.max()
        assert step.seconds == pytest.approx(now)


def test_with_more_clients_selected_the_slowest_are_left_out() -> None:
    speeds = np.where(np.arange(20) < 4, 1.0, 1e-3)
    strategy = "fedavg(clients=10) / none / server(over=1.5)"
    outcome = simulate(digits(), population(sample_seconds=speeds), strategy, 5, rate=0.1)
    for step in outcome.steps:
        assert len(step.clients) == 10 and len(step.late) == 5
        slow = [c for c in (*step.clients, *step.late) if c < 4]
        assert set(slow) <= set(step.late)


def test_a_deadline_closes_a_round_and_too_few_reports_lose_it() -> None:
    speeds = np.where(np.arange(20) < 10, 1.0, 1e-3)
    strategy = "fedavg(clients=20) / none / server(deadline=5.0, minimum=0.6)"
    lost = simulate(digits(), population(sample_seconds=speeds), strategy, 2, rate=0.1)
    assert not any(step.committed for step in lost.steps) and lost.server.version == 0
    assert [step.seconds for step in lost.steps] == [5.0, 10.0]
    kept = simulate(digits(), population(sample_seconds=speeds), strategy.replace("0.6", "0.5"), 2, rate=0.1)
    assert all(step.clients == tuple(range(10, 20)) for step in kept.steps) and kept.server.version == 2


def test_lost_clients_do_not_report_and_the_others_make_the_round() -> None:
    outcome = simulate(digits(), population(lost=0.3), "fedavg(clients=10)", 20, rate=0.1)
    gone = sum(len(step.lost) for step in outcome.steps)
    assert 30 <= gone <= 90 and all(len(step.clients) + len(step.lost) == 10 for step in outcome.steps)
    assert outcome.up_bytes.sum() == (200 - gone) * SIZE and outcome.down_bytes.sum() == 200 * SIZE


def test_rounds_wait_for_clients_that_can_be_reached() -> None:
    """Those of a window of the day; one whose window ends before it has reported is lost."""
    begins = np.where(np.arange(20) < 10, 0.0, 50.0)
    lasts = np.full(20, 10.0)
    lasts[3] = 1.0
    clients = population(availability=Daily(begins, lasts, day=100.0))
    outcome = simulate(digits(), clients, "fedavg(clients=10) / none / server(minimum=1.0)", 1, rate=0.1)
    assert outcome.steps[0].lost == () or 3 in outcome.steps[0].lost
    with pytest.raises(LaconicError, match="no more will be"):
        intervals = Trace(np.array([[0.0, 5.0]]), np.array([0, *[1] * 20]))
        simulate(
            digits(), population(availability=intervals), "fedavg(clients=10) / none / server(minimum=1.0)", 1, rate=0.1
        )


def test_a_trace_says_until_when_a_client_can_be_reached() -> None:
    trace = Trace(np.array([[0.0, 5.0], [8.0, 9.0], [2.0, 3.0]]), np.array([0, 2, 3]))
    assert trace.until(np.array([0, 1]), 1.0).tolist() == [5.0, 1.0]
    assert trace.until(np.array([0, 1]), 8.5).tolist() == [9.0, 3.0]
    assert trace.next_change(3.0) == 8.0 and trace.next_change(8.0) == math.inf


@pytest.mark.parametrize("seed", [0, 1])
def test_a_clients_error_memory_survives_rounds_without_it(seed: int) -> None:
    """What all clients have sent and keep is what they have computed, though each was in few of the rounds."""
    computed: list[Tensor] = []

    @dataclass(frozen=True)
    class Recording(FedAvg):
        def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
            sent = super().train(local, received, memory)
            computed.append(sent.vectors["change"].clone())
            return sent

    strategy = FederatedStrategy.parse("fedavg(clients=2, batch=0) / topk(0.25)+ef / server")
    task = Quadratics(torch.randn(5, 8, generator=torch.Generator().manual_seed(seed)))
    kept = InMemory()
    outcome = simulate(
        task,
        among_quadratics([1] * 5),
        replace(strategy, rule=Recording(clients=2, batch=0)),
        20,
        rate=0.2,
        seed=seed,
        client_memory=kept,
    )
    errors = sum(value.reshape(-1) for client in range(5) for value in kept.load(client).values())
    assert len(computed) == 40 and torch.as_tensor(errors).norm() > 0.1
    torch.testing.assert_close(2 * outcome.parameters + errors, torch.stack(computed).sum(0), rtol=1e-4, atol=1e-5)


def test_memory_on_disk_gives_the_same_training(tmp_path: Path) -> None:
    text = "scaffold(clients=4, batch=0) / topk(0.1)+ef / server"
    kept = simulate(digits(), population(), text, 6, rate=0.1)
    stored = simulate(digits(), population(), text, 6, rate=0.1, client_memory=OnDisk(tmp_path / "clients"))
    assert torch.equal(kept.parameters, stored.parameters)
    taken = {c for step in kept.steps for c in step.clients}
    assert {int(path.stem) for path in (tmp_path / "clients").iterdir()} == taken


def test_what_is_sent_down_can_be_compressed_and_missed_rounds_are_caught_up() -> None:
    """A client that missed rounds is sent their messages, or the whole model where that is shorter; a message that is
    left out in one round is sent in a later one."""
    text = 'fedavg(clients=3, batch=50) / none / server(down="topk(0.05)")'
    outcome = simulate(digits(), population(10), text, 12, rate=0.1)
    small = simulate(
        digits(), population(10), 'fedavg(clients=10, batch=50) / none / server(down="topk(0.05)")', 3, rate=0.1
    )
    message = (small.down_bytes[0] - SIZE) / 2
    assert 0.05 * SIZE < message < 0.15 * SIZE and (small.down_bytes == small.down_bytes[0]).all()
    last, expected = dict[int, int](), np.zeros(10)
    for number, step in enumerate(outcome.steps):
        for client in step.clients:
            expected[client] += SIZE if client not in last else min(SIZE, (number - last[client]) * message)
            last[client] = number
    assert np.array_equal(outcome.down_bytes, expected)


def test_sentences_say_what_they_mean_and_what_is_wrong_is_refused() -> None:
    text = "fedavg(5, epochs=2) / topk(0.02)+error_feedback / server(int8, over=1.3)"
    strategy = FederatedStrategy.parse(text)
    assert str(strategy) == text and FederatedStrategy.parse(str(strategy)) == strategy
    assert str(FederatedStrategy.parse("scaffold")) == "scaffold / none / server"
    for wrong, reason in {
        "topk(0.01)": "names no rule",
        "fedavg / fedprox": "each once",
        "fedavg / bsp": "cannot stand here",
        "fedavg / int8+two_hop": "between clients",
        'fedavg / none / server(down="topk+ef")': "remembers anyway",
    }.items():
        with pytest.raises(StrategyError, match=reason):
            FederatedStrategy.parse(wrong)


@pytest.mark.parametrize("seed", [0, 1])
def test_partitions_hold_every_sample_once(seed: int) -> None:
    labels = digits().labels.numpy()
    parts = {
        "iid": iid(len(labels), 30, seed),
        "quantity": by_quantity(len(labels), 30, 0.5, seed),
        "dirichlet": dirichlet(labels, 30, 0.1, seed),
        "label": by_label(labels, 30, 2, seed),
        "natural": natural(labels),
    }
    for shards in parts.values():
        assert sorted(shards.order.tolist()) == list(range(len(labels))) and shards.sizes.min() >= 1
    assert np.ptp(parts["iid"].sizes) <= 1
    assert parts["quantity"].sizes.max() > 3 * np.median(parts["quantity"].sizes)
    assert ((parts["label"].counts(labels) > 0).sum(1) <= 4).all()
    most = parts["dirichlet"].counts(labels).max(1) / parts["dirichlet"].sizes
    assert np.median(most) > 0.5 > np.median(parts["iid"].counts(labels).max(1) / parts["iid"].sizes)
    assert (parts["natural"].counts(labels) > 0).sum() == 10


def test_a_model_with_running_statistics_is_refused() -> None:
    task = replace(digits(), make=lambda: torch.nn.Sequential(torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10)))
    with pytest.raises(LaconicError, match="group normalisation"):
        simulate(task, population(), "fedavg", 1, rate=0.1)


def test_shards_that_do_not_fit_are_refused() -> None:
    with pytest.raises(LaconicError, match="follow one another"):
        Shards(np.arange(5), np.array([0, 3]))


@pytest.mark.parametrize(
    "work",
    [
        Work(3, 8, 0.1),
        Work(1, 0, 0.1),
        Work(1, 8, 0.1, steps=7),
        Work(2, 4, 0.1, drawn=9),
        Work(1, 4, 0.1, steps=6, drawn=9),
    ],
)
@pytest.mark.parametrize("held", [1, 8, 21])
def test_steps_and_samples_are_those_that_are_counted(work: Work, held: int) -> None:
    batches = list(work.batches(np.arange(100, 100 + held), np.random.default_rng(0)))
    assert len(batches) == work.steps_made(held)
    assert sum(map(len, batches)) == work.samples_used(held)
    used = set(np.concatenate(batches).tolist())
    assert len(used) <= min(held, work.drawn or held) and used <= set(range(100, 100 + held))


def test_a_step_costs_time_beside_its_samples() -> None:
    shards = iid(100, 2)
    outcome = simulate(
        digits(), Population(shards, 1e-3, 1e12, 1e12, step_seconds=[0.1, 0.2]), "fedavg(2, batch=20)", 1, rate=0.1
    )
    assert outcome.seconds == pytest.approx(50 * 1e-3 + 3 * 0.2, rel=1e-6)
    with pytest.raises(LaconicError, match="at least zero"):
        Population(shards, step_seconds=-1)


@dataclass(frozen=True)
class Masked(FedAvg):
    """Clients send a mask beside their change, and are sent a part of the model."""

    def share(self, server: Server, client: int, published: Vectors) -> Vectors:
        return {"parameters": published["parameters"], "more": torch.full((client,), 1.0)}

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        assert received["more"].numel() == local.client
        mask = torch.arange(11) % (local.client + 2) == 0
        return Sent(super().train(local, received, memory).vectors, {}, {"mask": mask})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        masks = {report.client: report.masks["mask"] for report in reports}
        return replace(super().aggregate(server, reports), kept={"masks": masks})


def test_masks_take_a_bit_for_each_scalar_and_clients_are_sent_their_part() -> None:
    outcome = simulate(digits(), population(3), FederatedStrategy(Masked(clients=3)), 1, rate=0.1)
    assert outcome.up_bytes.tolist() == [SIZE + 2] * 3
    assert outcome.down_bytes.tolist() == [SIZE, SIZE + 4, SIZE + 8]
    for client, mask in outcome.server.kept["masks"].items():
        assert torch.equal(mask, torch.arange(11) % (client + 2) == 0)


def test_a_mask_that_says_something_else_of_its_length_is_refused() -> None:
    wire = Wire(Identity(), Trainer(digits(), 0).layout)
    message, _ = wire.encode({}, {}, 0, 0, {}, {"mask": torch.ones(20, dtype=torch.bool)})
    packed = message.masks["mask"][1]
    for numel in (-1, 16, 25, 8 * SIZE):
        with pytest.raises(ContractError, match="a bit for each"):
            wire.masks(replace(message, masks={"mask": (numel, packed)}), 0)


@dataclass(frozen=True)
class Coarse(FedAvg):
    """Client 1 sends its change in four bits, whatever the sentence says."""

    def compressor(self, server: Server, client: int, written: Compressor) -> Compressor:
        return QSGD() if client == 1 else written


def test_a_client_may_encode_in_its_own_way() -> None:
    strategies = FederatedStrategy(Coarse(clients=3)), FederatedStrategy(FedAvg(clients=3))
    own, plain = (simulate(digits(), population(3), strategy, 1, rate=0.1) for strategy in strategies)
    assert own.up_bytes[[0, 2]].tolist() == [SIZE] * 2 and own.up_bytes[1] < 0.15 * SIZE
    apart = float((own.parameters - plain.parameters).abs().max())
    assert 0 < apart < 0.1


@dataclass(frozen=True)
class Waiting(FedBuff):
    """The server steps with two reports, then with three; who has reported waits for the step."""

    waits = True

    def reports(self, server: Server) -> int:
        return 2 + server.version

    def is_finished(self, server: Server) -> bool:
        return server.version == 2


def test_who_waits_for_a_step_begins_after_it() -> None:
    """Four clients that take 1, 2, 3 and 4 seconds: the first reports at 1 and waits until 2."""
    clients = Population(iid(400, 4), [0.01, 0.02, 0.03, 0.04], 1e12, 1e12)
    outcome = simulate(digits(), clients, FederatedStrategy(Waiting(clients=4, at_work=4)), 9, rate=0.1)
    assert [set(step.clients) - {1, 3} for step in outcome.steps] == [{0}, {0, 2}]
    assert [len(step.clients) for step in outcome.steps] == [2, 3]
    assert [step.seconds for step in outcome.steps] == pytest.approx([2.0, 4.0])


def test_a_trace_tells_until_when_each_client_can_be_reached() -> None:
    draw = np.random.default_rng(5)
    counts = draw.integers(0, 9, 60)  # some clients are in no interval
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = [np.sort(draw.choice(1000, 2 * count, replace=False)).reshape(-1, 2) for count in counts]
    trace = Trace(np.concatenate(rows).astype(float), starts)
    for now in (0.0, 17.0, 250.0, 500.5, 999.0, 2000.0):
        clients = draw.permutation(60)[:40]
        expected = [max((end for begin, end in rows[c] if begin <= now), default=now) for c in clients]
        assert trace.until(clients, now).tolist() == expected
        later = [begin for row in rows for begin, _ in row if begin > now]
        assert trace.next_change(now) == min(later, default=np.inf)
    now = float(rows[int(np.argmax(counts))][0, 0])  # an interval has begun at its beginning
    assert trace.until(np.array([np.argmax(counts)]), now)[0] == rows[int(np.argmax(counts))][0, 1]
