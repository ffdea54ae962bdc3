"""Sparse ternary compression both ways, among clients of two labels."""

from __future__ import annotations

import pytest

from laconic.federated.partition import by_label
from laconic.federated.population import Population
from laconic.federated.simulate import simulate
from tests.federated.digits import digits
from tests.federated.racing import bytes_to

PLAIN = "fedavg(10, batch=15)"
TERNARY = 'fedavg(10, batch=0) / stc(0.01)+ef / server(down="stc(0.01)")'


@pytest.mark.long
@pytest.mark.technique("stc", check=3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_fiftieth_of_the_bits_of_ten_local_steps_is_enough(seed: int) -> None:
    """To 90 % of digits with all of ten clients: one step of all samples against ten steps of fifteen, each with the
    best of its rates. And FedAvg is behind after its first round, for which it has sent more than STC for a hundred."""
    task, clients = digits(128), Population(by_label(digits().labels.numpy(), 10, 2, seed))
    plain = bytes_to(0.9, task, clients, [PLAIN], (0.3, 0.1, 1.0), seed, 60)
    ternary = bytes_to(0.9, task, clients, [TERNARY], (1.0, 0.3), seed, 150)
    assert plain < float("inf") and 50 * ternary < plain
    first, many = (
        simulate(task, clients, text, rounds, rate=0.3, seed=seed, evaluate_every=rounds).steps[-1]
        for text, rounds in ((PLAIN, 1), (TERNARY, 100))
    )
    assert many.up_bytes + many.down_bytes < first.up_bytes + first.down_bytes
    assert many.scores["accuracy"] > first.scores["accuracy"] + 0.1
