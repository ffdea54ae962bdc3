"""Rules of federated learning against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laconic.federated.local import Local, Trainer, Work
from laconic.federated.partition import by_label, iid
from laconic.federated.population import Population
from laconic.federated.rule import Report, Server
from laconic.federated.rules.fednova import accumulated
from laconic.federated.rules.fedopt import FedOpt
from laconic.federated.simulate import simulate
from tests.federated.digits import Quadratics, among_quadratics, digits


def close(a: torch.Tensor, b: torch.Tensor, within: float = 1e-6) -> bool:
    return bool((a - b).abs().max() <= within)


@pytest.mark.technique("fedavg", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_one_step_with_all_samples_is_a_step_on_the_pooled_data(seed: int) -> None:
    """Of clients with unequal numbers of samples, so that the weights matter."""
    labels = digits().labels.numpy()
    clients = Population(by_label(labels[:1200], 7, 3, seed))
    outcome = simulate(digits(), clients, "fedavg(clients=7, epochs=1, batch=0)", 1, rate=0.5, seed=seed)
    trainer = Trainer(digits(), seed)
    gradient, _ = trainer.gradient(trainer.start, np.sort(clients.shards.order))
    assert close(outcome.parameters, trainer.start - 0.5 * gradient)


@pytest.mark.technique("fedavg", check=2)
def test_all_clients_with_some_steps_are_local_sgd() -> None:
    """A mean of the clients' models, weighted by samples, of steps from the same model."""
    clients = Population(iid(1001, 4))
    outcome = simulate(digits(), clients, "fedavg(clients=4, epochs=2, batch=64)", 1, rate=0.1)
    trainer = Trainer(digits(), 0)
    total = torch.zeros_like(trainer.start)
    for client in range(4):
        samples, work = clients.shards[client], Work(2, 64, 0.1)
        draw = np.random.default_rng([0, 0xC11E, 0, client])
        parameters = trainer.start.clone()
        for batch in work.batches(samples, draw):
            parameters = parameters - 0.1 * trainer.gradient(parameters, batch)[0]
        total += len(samples) / 1001 * parameters
    assert close(outcome.parameters, total)


def rounds_to(text: str, clients: Population, target: float, most: int, rate: float, seed: int = 0) -> float:
    """Return the rounds until an accuracy is reached."""
    outcome = simulate(digits(), clients, text, most, rate=rate, seed=seed, evaluate_every=1)
    found = outcome.first("accuracy", target)
    return outcome.steps.index(found) + 1 if found is not None else np.inf


@pytest.mark.long
@pytest.mark.technique("fedavg", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_local_epochs_save_rounds(seed: int) -> None:
    """Each with the best of the same rates; at least five times on even data, and some on clients of two labels."""
    labels = digits().labels.numpy()
    rates = (0.03, 0.1, 0.3, 1.0)
    for clients, factor in (
        (Population(iid(len(labels), 50, seed)), 5.0),
        (Population(by_label(labels, 50, 2, seed)), 1.0),
    ):
        few, many = (
            min(rounds_to(text, clients, 0.9, 150, rate, seed) for rate in rates)
            for text in ("fedavg(clients=10, epochs=5, batch=10)", "fedavg(clients=10, epochs=1, batch=0)")
        )
        assert few < np.inf and many > factor * few


@pytest.mark.technique("fedprox", check=1)
def test_fedprox_without_its_term_is_fedavg() -> None:
    clients = Population(iid(500, 10))
    plain, held = (
        simulate(digits(), clients, text, 5, rate=0.1)
        for text in ("fedavg(clients=4, epochs=2)", "fedprox(clients=4, epochs=2, mu=0)")
    )
    assert close(plain.parameters, held.parameters)


@pytest.mark.technique("fedprox", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_clients_move_less_the_stronger_they_are_held(seed: int) -> None:
    clients = Population(by_label(digits().labels.numpy(), 20, 2, seed))
    moved = []
    for mu in (0.0, 0.01, 0.1, 1.0, 4.0):
        outcome = simulate(digits(), clients, f"fedprox(clients=1, epochs=5, mu={mu})", 1, rate=0.1, seed=seed)
        moved.append(float((outcome.parameters - Trainer(digits(), seed).start).norm()))
    assert moved == sorted(moved, reverse=True) and moved[-1] < 0.5 * moved[0]
    still = simulate(digits(), clients, "fedprox(clients=1, epochs=5, mu=1e6)", 1, rate=1e-6, seed=seed)
    assert close(still.parameters, Trainer(digits(), seed).start, 1e-4)


@pytest.mark.technique("fednova", check=1)
def test_fednova_with_equal_work_is_fedavg() -> None:
    clients = Population(iid(500, 10))
    plain, normalised = (
        simulate(digits(), clients, f"{rule}(clients=4, epochs=2)", 5, rate=0.1) for rule in ("fedavg", "fednova")
    )
    assert close(plain.parameters, normalised.parameters)


@pytest.mark.long
@pytest.mark.technique("fednova", check=2)
def test_fednova_takes_out_the_pull_of_busy_clients() -> None:
    """Two clients f = (w - b)²/2 with one and ten steps a round, and equal weights."""
    task = Quadratics(torch.tensor([[0.0], [1.0]]))

    def fixed_point(rule: str, rate: float) -> float:
        from dataclasses import dataclass, replace

        from laconic.federated.local import Work
        from laconic.federated.strategy import FederatedStrategy

        made = FederatedStrategy.parse(f"{rule}(clients=2, batch=1)")

        @dataclass(frozen=True)
        class Unequal(type(made.rule)):  # type: ignore[misc]  # the rule, with so many steps a client
            def work(self, server: Server, client: int, population: Population, rate: float) -> Work:
                return Work(1, 1, rate, steps=(1, 10)[client])

        unequal = replace(made, rule=Unequal(clients=2, batch=1))
        return float(simulate(task, among_quadratics([3, 3]), unequal, int(3 / rate), rate=rate).parameters[0])

    assert abs(fixed_point("fedavg", 0.01) - 0.5) > 0.3
    errors = [abs(fixed_point("fednova", rate) - 0.5) for rate in (0.01, 0.005)]
    assert errors[0] < 0.02 and errors[1] == pytest.approx(errors[0] / 2, rel=0.1)


@pytest.mark.technique("fednova", check=3)
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize(("mu", "momentum"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.9), (0.5, 0.9)])
def test_the_weights_of_gradients_add_up_as_a_roll_out_says(steps: int, mu: float, momentum: float) -> None:
    """A client whose gradient is always -1, without the proximal term, moves by the rate times the sum of weights."""
    rate, at, direction = 0.1, 0.0, 0.0
    for _ in range(steps):
        direction = momentum * direction + (-1.0 + mu * at)
        at -= rate * direction
    assert at / rate == pytest.approx(accumulated(steps, rate, mu, momentum), rel=1e-6)


@pytest.mark.technique("scaffold", check=1)
@pytest.mark.parametrize("option", ["I", "II"])
def test_the_servers_control_is_the_mean_of_all_clients(option: str) -> None:
    """Also of clients that were not in the round, or in any."""
    from laconic.federated.client_memory import InMemory

    clients, memory = Population(by_label(digits().labels.numpy(), 12, 2)), InMemory()
    for rounds in (1, 2, 5):
        memory = InMemory()
        text = f"scaffold(clients=4, option={option})"
        outcome = simulate(digits(), clients, text, rounds, rate=0.1, client_memory=memory)
        controls = [memory.load(c).get("rule/control", torch.zeros_like(outcome.parameters)) for c in range(12)]
        assert close(outcome.server.kept["control"], torch.stack(controls).mean(0))


@pytest.mark.technique("scaffold", check=1)
def test_scaffold_without_controls_is_fedavg_bit_for_bit() -> None:
    from dataclasses import dataclass

    from laconic.federated.client_memory import Memory
    from laconic.federated.layout import Vectors
    from laconic.federated.rule import Sent
    from laconic.federated.rules.scaffold import Scaffold
    from laconic.federated.strategy import FederatedStrategy

    @dataclass(frozen=True)
    class Forced(Scaffold):
        def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
            sent = super().train(local, received, memory)
            memory["control"] = torch.zeros_like(sent.vectors["control"])
            return Sent({**sent.vectors, "control": memory["control"]})

    clients = Population(iid(1200, 12))
    forced = simulate(digits(), clients, FederatedStrategy(Forced(clients=4, epochs=2)), 4, rate=0.1)
    plain = simulate(digits(), clients, "fedavg(clients=4, epochs=2)", 4, rate=0.1)
    assert torch.equal(forced.parameters, plain.parameters)


@pytest.mark.long
@pytest.mark.technique("scaffold", check=2)
def test_scaffold_reaches_the_optimum_of_unequal_clients() -> None:
    """Two quadratics of unequal curvature, ten full steps a round: drift stops FedAvg."""

    class Curved(Quadratics):
        def loss(self, model: torch.nn.Module, samples: torch.Tensor) -> torch.Tensor:
            weight: torch.Tensor = model.weight  # type: ignore[assignment]
            curvature = torch.tensor([1.0, 10.0])[samples][:, None]
            return (curvature * (weight - self.targets[samples]) ** 2).sum(1).mean() / 2

    task = Curved(torch.tensor([[1.0, -1.0], [-1.0, 2.0]]))
    optimum = (task.targets[0] + 10 * task.targets[1]) / 11
    ends = {
        rule: simulate(task, among_quadratics([1, 1]), f"{rule}(clients=2, epochs=10, batch=0)", 400, rate=0.02)
        for rule in ("fedavg", "scaffold")
    }
    distances = {rule: float((end.parameters - optimum).norm()) for rule, end in ends.items()}
    assert distances["scaffold"] < 1e-6 and distances["fedavg"] > 1e-3


@pytest.mark.technique("scaffold", check=3)
def test_scaffold_sends_twice_the_bytes() -> None:
    clients = Population(iid(600, 12))
    both = [simulate(digits(), clients, f"{rule}(clients=4)", 3, rate=0.1) for rule in ("fedavg", "scaffold")]
    assert np.array_equal(2 * both[0].up_bytes, both[1].up_bytes)
    assert np.array_equal(2 * both[0].down_bytes, both[1].down_bytes)


@pytest.mark.long
@pytest.mark.technique("scaffold", check=3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scaffold_needs_fewer_rounds_where_labels_differ(seed: int) -> None:
    """Twenty clients of two labels, of which half take part; each rule with the best of the same rates."""
    clients = Population(by_label(digits().labels.numpy(), 20, 2, seed))
    plain, corrected = (
        min(rounds_to(f"{rule}(clients=10, epochs=5, batch=10)", clients, 0.9, 40, r, seed) for r in (0.03, 0.1, 0.3))
        for rule in ("fedavg", "scaffold")
    )
    assert corrected <= 0.8 * plain < np.inf


@pytest.mark.technique("fedopt", check=2)
@pytest.mark.parametrize("optimizer", ["adam", "yogi", "adagrad", "momentum"])
def test_two_steps_of_each_optimizer_are_those_computed_by_hand(optimizer: str) -> None:
    rule = FedOpt(optimizer=optimizer, server_rate=0.5, beta1=0.9, beta2=0.99, tau=0.01)
    server = rule.init(torch.tensor([1.0, -2.0, 0.5]), among_quadratics([1]))
    x, m, v = np.array([1.0, -2.0, 0.5]), np.zeros(3), np.full(3, 1e-4)
    for change in (np.array([0.1, -0.001, 0.0]), np.array([-0.2, 0.3, 0.02])):
        report = Report(0, 0, 3, {"change": torch.tensor(change, dtype=torch.float32)}, {})
        before, server = v, rule.aggregate(server, [report])
        if optimizer == "momentum":
            m = 0.9 * m + change
            x = x + 0.5 * m
        else:
            m = change if optimizer == "adagrad" else 0.9 * m + 0.1 * change
            v = {
                "adam": 0.99 * v + 0.01 * change**2,
                "yogi": v - 0.01 * change**2 * np.sign(v - change**2),
                "adagrad": v + change**2,
            }[optimizer]
            x = x + 0.5 * m / (np.sqrt(v) + 0.01)
            assert optimizer != "yogi" or (np.abs(v - before) <= 0.01 * change**2 + 1e-12).all()
        np.testing.assert_allclose(server.parameters.numpy(), x, rtol=1e-6, atol=1e-7)


@pytest.mark.technique("fedopt", check=1)
def test_server_sgd_is_fedavg() -> None:
    clients = Population(iid(600, 12))

    def end(text: str) -> torch.Tensor:
        return simulate(digits(), clients, text, 6, rate=0.1).parameters

    assert close(end("fedavg(clients=4)"), end("fedopt(clients=4, optimizer=momentum, beta1=0, server_rate=1)"))


@pytest.mark.technique("fedopt", check=1)
@pytest.mark.parametrize("tau", [1.0, 30.0, 1000.0])
def test_adam_with_a_large_tau_is_damped_momentum(tau: float) -> None:
    """To the order of √v/τ, which is 1 in the first step, since v starts at τ², and falls as it forgets that."""
    adam = FedOpt(optimizer="adam", server_rate=tau, tau=tau, beta2=0.5)
    damped = FedOpt(optimizer="momentum", server_rate=0.1)  # (1 - β₁) of each change
    both = [rule.init(torch.zeros(5), among_quadratics([1])) for rule in (adam, damped)]
    draw = torch.Generator().manual_seed(0)
    for _ in range(40):
        report = Report(0, 0, 1, {"change": 0.1 * torch.randn(5, generator=draw)}, {})
        before = both
        both = [rule.aggregate(server, [report]) for rule, server in zip((adam, damped), both, strict=True)]
        steps = [after.parameters - server.parameters for after, server in zip(both, before, strict=True)]
        order = both[0].kept["v"].sqrt() / tau
        torch.testing.assert_close(steps[0], steps[1] / (1 + order), rtol=1e-4, atol=1e-6)
    assert float(order.max()) < 0.2 / tau + 1e-5


@pytest.mark.technique("fedopt", check=3)
def test_fedopt_sends_the_bytes_of_fedavg() -> None:
    clients = Population(iid(600, 12))
    both = [simulate(digits(), clients, f"{rule}(clients=4)", 3, rate=0.1) for rule in ("fedavg", "fedopt")]
    assert np.array_equal(both[0].up_bytes, both[1].up_bytes)


@pytest.mark.technique("fedbuff", check=1)
def test_fedbuff_of_all_clients_at_equal_speed_is_fedavg() -> None:
    clients = Population(iid(600, 6))
    rounds, buffered = (
        simulate(digits(), clients, text, 5, rate=0.1)
        for text in ("fedavg(clients=6)", "fedbuff(6, at_work=6, discounts=false)")
    )
    assert close(rounds.parameters, buffered.parameters)
    assert [step.seconds for step in rounds.steps] == pytest.approx([step.seconds for step in buffered.steps])
    assert all(set(step.staleness) == {0} for step in buffered.steps)


@pytest.mark.technique("fedbuff", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_fedbuff_steps_with_every_k_reports_and_counts_their_age(seed: int) -> None:
    """With speeds that differ by ten: versions, replacements and times are recomputed from the steps themselves."""
    draw = np.random.default_rng(seed)
    clients = Population(iid(1200, 30), sample_seconds=10 ** draw.uniform(-3, -2, 30))
    outcome = simulate(digits(), clients, "fedbuff(4, at_work=10)", 12, rate=0.05, seed=seed)
    assert outcome.server.version == 12 and all(len(step.clients) == 4 for step in outcome.steps)
    assert max(age for step in outcome.steps for age in step.staleness) >= 2
    assert min(age for step in outcome.steps for age in step.staleness) == 0
    reports = sum(len(step.clients) for step in outcome.steps)
    started = int(outcome.down_bytes.sum()) // (4 * Trainer(digits(), 0).layout.numel)
    assert started - reports in (10, 10 - 1)  # those at work when the last report came, which nobody replaced
