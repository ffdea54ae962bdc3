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
    """To 95 % of digits with all of ten clients: one step of all samples against ten steps of fifteen, which take the
    better of two rates. Without a memory at the clients it is not reached in so many rounds. With the bits that STC
    needs FedAvg has not done its first round, after which it is behind."""
    task, clients, rates = digits(128), Population(by_label(digits().labels.numpy(), 10, 2, seed)), (0.3, 0.1)
    plain = bytes_to(0.95, task, clients, [PLAIN], rates, seed, 70)
    ternary = bytes_to(0.95, task, clients, [TERNARY], [1.0], seed, 100)
    assert plain < float("inf") and 50 * ternary < plain
    for rate in rates:
        first = simulate(task, clients, PLAIN, 1, rate=rate, seed=seed, evaluate_every=1)
        assert ternary < first.up_bytes.sum() and first.steps[0].scores["accuracy"] < 0.8
