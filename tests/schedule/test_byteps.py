"""BytePS: shares of the summation services, the time they promise, and the pipeline of stages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cost.iteration import Order, Stage, Transfer, period
from laconic.cost.lanes import Lane
from laconic.cost.server_star import sliced
from laconic.cost.summation_service import Summed, summation
from laconic.errors import LaconicError
from laconic.network.network_tree import Network
from laconic.schedule.byteps import PIECE_BYTES, Fleet, byteps
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price
from tests.schedule.cnns import profile

MODEL = 1.3e9  # bytes
RATE = 1e11
FLEETS = [(n, k) for n in (2, 3, 5, 8) for k in range(n + 1)]


def simulated(fleet: Fleet, blocks: np.ndarray) -> Summed:
    """In waves of which no service's piece is larger than BytePS's."""
    waves = int(np.ceil(blocks.max() / PIECE_BYTES))
    machines = fleet.gpu_machines + fleet.cpu_machines
    return summation(Network.flat(machines, fleet.bits_per_second), blocks, max(waves, 200))


@given(st.integers(1, 300), st.data())
@settings(max_examples=100, deadline=None)
@pytest.mark.technique("byteps", check=1)
def test_shares_add_up_to_the_model(gpu: int, data: st.DataObject) -> None:
    cpu = data.draw(st.integers(0, gpu))
    shares = Fleet(gpu, cpu, RATE).shares()
    assert len(shares) == gpu + cpu and min(shares) >= 0
    assert sum(shares) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(("gpu", "cpu"), FLEETS)
@pytest.mark.technique("byteps", check=1)
def test_the_network_takes_the_formulas_time(gpu: int, cpu: int) -> None:
    fleet = Fleet(gpu, cpu, RATE)
    assert simulated(fleet, fleet.pushes(MODEL)).seconds == pytest.approx(fleet.seconds(MODEL), rel=0.01)


@pytest.mark.parametrize("gpu", [2, 3, 5, 8])
@pytest.mark.technique("byteps", check=2)
def test_the_ends_send_what_all_reduce_and_servers_send(gpu: int) -> None:
    alone = Fleet(gpu, 0, RATE)
    found = simulated(alone, alone.pushes(MODEL))
    for moved in (found.sent_bytes, found.received_bytes):
        assert moved == pytest.approx(np.full(gpu, 2 * (gpu - 1) / gpu * MODEL), rel=1e-9)
    served = Fleet(gpu, gpu, RATE)
    found = simulated(served, served.pushes(MODEL))
    for moved in (found.sent_bytes, found.received_bytes):
        assert moved[:gpu] == pytest.approx(np.full(gpu, MODEL), rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(("gpu", "cpu"), [(3, 1), (4, 2), (4, 3)])
def test_no_other_split_is_faster(gpu: int, cpu: int) -> None:
    fleet, draw = Fleet(gpu, cpu, RATE), np.random.default_rng(7)
    for _ in range(5):
        shares = draw.dirichlet(np.full(gpu + cpu, 4.0))
        blocks = np.zeros((gpu + cpu, gpu + cpu))
        blocks[:gpu] = MODEL * shares
        np.fill_diagonal(blocks, 0.0)
        assert simulated(fleet, blocks).seconds >= fleet.seconds(MODEL)


def test_with_as_many_servers_as_workers_it_is_a_push_and_a_pull_by_wait_free_backpropagation() -> None:
    layers, price = profile("vgg16"), Price(1e-5, 8 / RATE)
    transfers = [
        Transfer((p.tensor,), (Stage("up", price.seconds(p.nbytes)), Stage("down", price.seconds(p.nbytes))), p.nbytes)
        for p in sliced(layers.nbytes, 1, PIECE_BYTES)
    ]
    assert byteps(layers, Fleet(4, 4, RATE, 1e-5)) == pytest.approx(period(layers, transfers))
    order = Order({"up": Lane(True, 2.0 * PIECE_BYTES), "down": Lane(True, 2.0 * PIECE_BYTES)}, gated=True)
    ranked = byteps(layers, Fleet(4, 4, RATE, 1e-5), credit_bytes=2.0 * PIECE_BYTES, gated=True)
    assert ranked == pytest.approx(period(layers, transfers, order))


def test_a_stage_that_is_slower_than_the_links_decides() -> None:
    """Pieces overlap in the stages: a hundred of them take as long as the slowest stage, and one through the others."""
    layers = LayerTimes((0.0,), (0.0,), (100.0 * PIECE_BYTES,))
    slow = Price(0.0, 1e-9)
    found = byteps(layers, Fleet(2, 2, 8e10, local=Price(0.0, 2e-10), copy=slow, summing=Price(0.0, 5e-10)))
    through = 2 * 2e-10 + 2 * 1e-10 + 5e-10 + 2 * 1e-9
    assert found == pytest.approx(PIECE_BYTES * (through + 99 * 1e-9))


def test_more_spare_machines_than_others_are_refused() -> None:
    with pytest.raises(LaconicError, match="leave the others out"):
        Fleet(2, 3, RATE)
