"""The network model against published throughputs (Shi et al., arXiv 2005.13247: 8 machines with 4 GPUs each)."""

from __future__ import annotations

import math

import pytest

from laconic.collective import flows
from laconic.network.fluid import Fluid
from laconic.network.network_tree import Level, Network
from tests import data

NIC_BYTES_PER_SECOND = 1.15e9  # the row's one fitted figure, for 10 Gb/s Ethernet
INSIDE_BITS_PER_SECOND = 1e12  # inside a machine nothing is the bottleneck once there are two


def ring_seconds(gpus: int, nbytes: float) -> float:
    """An all-reduce over machines of four that share one NIC each, by the simulator's own fluid."""
    network = Network(gpus, (Level(1, INSIDE_BITS_PER_SECOND), Level(4, 8 * NIC_BYTES_PER_SECOND)))
    ended = []
    fluid = Fluid(network.capacities)
    fluid.add(network.job("all_reduce", None, flows.all_reduce(gpus, nbytes), range(gpus), ended.append), 0.0)
    while (event := fluid.next_event()) < math.inf:
        fluid.advance(event)
    return float(ended[0])


@pytest.mark.evidence("bsp_a2a")
@pytest.mark.long
@pytest.mark.technique("bsp_a2a", check=1)
def test_bsp_over_10_gigabit_ethernet_takes_the_published_time() -> None:
    facts: dict[str, dict[str, float]] = {}
    for row in data.rows("ddl-benchmarks/inputs.csv"):
        facts.setdefault(row["name"], {})[row["field"]] = float(row["value"])
    errors = {}
    for row in data.rows("ddl-benchmarks/throughput.csv"):
        if (row["network"], row["method"]) != ("10GbE", "BSP-A2A"):
            continue
        model = facts[row["model"]]
        for gpus in (8, 16, 32):
            published = gpus * model["local_batch"] / float(row[f"g{gpus}"])
            predicted = model["single_gpu_iteration"] / 1e3 + ring_seconds(gpus, 4 * model["parameters"])
            errors[row["model"], gpus] = predicted / published - 1
    assert len(errors) == 9
    assert max(map(abs, errors.values())) <= 0.03, errors
