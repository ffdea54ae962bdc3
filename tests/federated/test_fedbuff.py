"""FedBuff: what it is worth that nobody waits for the slowest client of a round."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.federated.partition import iid
from laconic.federated.population import Population
from tests.federated.digits import digits
from tests.federated.racing import seconds_to


@pytest.mark.long
@pytest.mark.technique("fedbuff", check=3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_target_is_reached_in_two_thirds_of_the_time_of_rounds(seed: int) -> None:
    """A hundred clients whose times are half-normal, of which thirty train at any time; both with the best of the same
    rates. Rounds last as long as the slowest of thirty."""
    each = 1e-2 * np.abs(np.random.default_rng(seed).standard_normal(100))
    clients = Population(iid(1437, 100, seed), each)
    buffered, rounds = (
        seconds_to(0.85, digits(), clients, [text], (1.0, 0.3), seed, 600)
        for text in ("fedbuff(at_work=30)", "fedavg(30)")
    )
    assert buffered <= rounds / 1.5 < np.inf
