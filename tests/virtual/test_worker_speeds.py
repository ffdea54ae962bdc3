"""Unequal workers and unequal links on the virtual engine: exact times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import laconic
from laconic.errors import LaconicError
from laconic.launch.request import Request
from laconic.launch.virtual import launch_virtually
from laconic.network.network_tree import Level, Network
from laconic.real.connect import connect
from laconic.values.worker_speeds import Stragglers, WorkerSpeeds
from laconic.virtual.compute import Compute

BYTES_PER_SECOND = 1e6
RATES = [8 * BYTES_PER_SECOND, 8 * BYTES_PER_SECOND, 8 * BYTES_PER_SECOND, 0.8 * BYTES_PER_SECOND]


def all_reduce() -> float:
    connect().world.all_reduce(torch.zeros(1000)).wait()
    return connect().clock_seconds()


@pytest.mark.parametrize(
    ("slow", "factor"), [((), 1), ((3,), 10), ((0, 2), 10)], ids=["none is slow", "one is slow", "two are slow"]
)
def test_a_ring_goes_at_the_pace_of_its_slowest_link(slow: tuple[int, ...], factor: float) -> None:
    rates = [RATES[3] if k in slow else RATES[0] for k in range(4)]
    ends = laconic.simulate(all_reduce, 4, Network.flat(4, rates)).results
    assert ends == pytest.approx([factor * 2 * 3 / 4 * 4000 / BYTES_PER_SECOND] * 4, rel=1e-12)


def test_only_whoever_is_behind_a_slow_link_is_slow() -> None:
    """Two messages at once, 0→1 and 2→3: the second enters the slow link."""

    def exchange() -> float:
        world, number = connect().world, torch.zeros(1000)
        (world.send(number, world.rank + 1) if world.rank % 2 == 0 else world.receive(number, world.rank - 1)).wait()
        return connect().clock_seconds()

    ends = laconic.simulate(exchange, 4, Network.flat(4, RATES)).results
    assert ends == pytest.approx([0.004, 0.004, 0.04, 0.04], rel=1e-12)


def test_two_messages_into_one_slow_link_share_it_and_leave_the_rest_alone() -> None:
    network = Network(4, (Level(1, 8e6),), links={3: 4e6})
    assert network.capacities.tolist() == [1e6] * 6 + [5e5] * 2

    def exchange() -> float:
        world, number = connect().world, torch.zeros(1000)
        if world.rank == 3:
            for handle in [world.receive(torch.zeros(1000), source) for source in (0, 1)]:
                handle.wait()
        elif world.rank < 2:
            world.send(number, 3).wait()
        return connect().clock_seconds()

    ends = laconic.simulate(exchange, 4, network).results
    assert ends == pytest.approx([0.016, 0.016, 0.0, 0.016], rel=1e-12)


def test_links_are_read_from_a_file_and_refused_where_they_make_no_sense() -> None:
    table = {"levels": [{"bandwidth": "1Gbit", "latency": "50us"}], "links": {"3": "100Mbit"}}
    network = Network.read(4, table)
    assert network == Network(4, (Level(1, 1e9, 5e-5),), links={3: 1e8})
    assert network.free().capacities.min() == network.free().capacities.max()
    for wrong in (
        lambda: Network.read(3, table),
        lambda: Network(2, (Level(1, 1e9),), links={0: 0.0}),
        lambda: Network.flat(4, [1e9, 1e9]),
    ):
        with pytest.raises(LaconicError):
            wrong()


def test_speeds_are_the_same_one_by_one_and_all_at_once() -> None:
    speeds = WorkerSpeeds((1.0, 2.0), Stragglers(0.3, 4.0), ((1.0, 1.5, 2.0),), seed=5)
    compute = Compute(slowness=(1.0, 2.0), straggling=Stragglers(0.3, 4.0), trace=((1.0, 1.5, 2.0),), seed=5)
    for step in range(20):
        single = [speeds.factor(rank, step) for rank in range(1500)]
        assert np.array_equal(speeds.factors(1500, step), single)
        assert np.array_equal(compute.factors(1500, step), single)
    alone = WorkerSpeeds(straggling=Stragglers(0.3, 4.0))
    straggled = np.mean([alone.factors(1000, step) > 1.0 for step in range(50)])
    assert straggled == pytest.approx(0.3, abs=0.02)


SCRIPT = """
import torch, laconic
model = torch.nn.Linear(2, 1)
model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01))
for _ in range(6):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def test_the_command_lines_options_set_the_speeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LACONIC_RUN", "")  # what the run leaves there ends with the test
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "net.toml").write_text(
        '[network]\nlevels = [{bandwidth = "99999Tbit"}]\n[compute]\nforward = "1s"\nbackward = "2s"\nslowness = [9]\n'
    )
    request = Request(
        command=(str(tmp_path / "train.py"),),
        workers=3,
        engine="virtual",
        network=str(tmp_path / "net.toml"),
        folder=str(tmp_path / "run"),
        slowness=(1.0, 2.0),
        stragglers=(0.4, 3.0),
    )
    assert launch_virtually(request) == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["slowness"], record["stragglers"]) == ([1.0, 2.0], [0.4, 3.0])
    speeds = WorkerSpeeds((1.0, 2.0), Stragglers(0.4, 3.0))
    slowest = [max(speeds.factor(rank, step) for rank in range(3)) for step in range(6)]
    assert record["result"]["virtual_seconds"] == pytest.approx(3.0 * sum(slowest), rel=1e-9)
