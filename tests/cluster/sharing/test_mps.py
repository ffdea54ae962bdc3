"""Clients of one GPU: shares, footprints, and a model fitted on measured pairs that predicts others."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.cluster.readers.lucid import read_lucid
from laconic.cluster.sharing.mps import Client, admits, effective_shares, fit, rates
from laconic.cluster.sharing.throughput import Throughput
from laconic.errors import ClusterError
from tests.data import folder_of


@pytest.mark.technique("mps", check=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_client_runs_as_alone_and_shares_never_exceed_the_gpu(seed: int) -> None:
    draws = np.random.default_rng(seed)
    clients = [
        Client(Throughput.knee(u, 3.0), u, *draws.uniform(0, 1, 2), share=float(draws.uniform(0.1, 1)))
        for u in draws.uniform(0.2, 1, 6)
    ]
    for client in clients:
        assert rates([client]) == [client.throughput.rate(client.share)]
    for count in range(1, 7):
        some = clients[:count]
        assert sum(effective_shares(some)) <= 1 + 1e-12
        for client, share, rate in zip(some, effective_shares(some), rates(some), strict=True):
            compute = share / min(client.share, client.utilisation)
            pressure = sum(other.bandwidth for other in some if other is not client)
            alone = client.throughput.rate(client.share)
            assert rate == pytest.approx(alone * compute / (1 + client.sensitivity * pressure))


@pytest.mark.technique("mps", check=1)
def test_shares_that_suffice_slow_nobody() -> None:
    small = [Client(Throughput.knee(u), u) for u in (0.3, 0.4, 0.25)]
    assert rates(small) == [1.0, 1.0, 1.0]
    capped = [Client(Throughput((0.5, 1.0), (4.0, 6.0)), 0.9, share=0.5)] * 2
    assert rates(capped) == [4.0, 4.0]
    assert rates(capped * 2) == [2.0, 2.0, 2.0, 2.0]


@pytest.mark.technique("mps", check=1)
def test_a_client_whose_footprint_does_not_fit_is_refused() -> None:
    client = Client(Throughput.knee(0.1), 0.1, memory_bytes=4e9)
    assert admits([client] * 2, client, 12e9)
    assert not admits([client] * 3, client, 15.9e9)
    tiny = Client(Throughput.knee(0.1), 0.1)
    assert admits([tiny] * 47, tiny, 1e9) and not admits([tiny] * 48, tiny, 1e9)


@pytest.mark.evidence("mps")
@pytest.mark.technique("mps", check=2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.long
def test_fitted_on_half_of_the_measured_pairs_it_predicts_the_others(seed: int) -> None:
    found = [row.pair for row in read_lucid(folder_of("lucid") / "colocate_info.csv")]
    assert len(found) == 1388
    order = np.random.default_rng(seed).permutation(len(found))
    seen, unseen = [found[i] for i in order[:694]], [found[i] for i in order[694:]]
    clients = fit(seen)
    predicted = np.array([rates([clients[pair.first], clients[pair.second]]) for pair in unseen])
    measured = np.array([pair[2:] for pair in unseen])
    mean = np.mean([pair[2:] for pair in seen])
    error, constant = np.abs(predicted - measured).mean(), np.abs(mean - measured).mean()
    assert error < 0.15
    assert error < 0.6 * constant


def test_a_profile_that_speeds_up_as_it_grows_is_refused() -> None:
    with pytest.raises(ClusterError, match="ever more slowly"):
        Throughput((0.5, 1.0), (1.0, 3.0))
