"""HetPipe's partition against every cut and order of GPUs, and its three ways to group them."""

from __future__ import annotations

import math
from itertools import permutations

import pytest

from laconic.errors import LaconicError
from laconic.parallel.planners import hetpipe
from laconic.parallel.planners.hetpipe import Gpu
from tests.parallel.planners.chains import compositions, drawn_chain

V, R, G, Q = (Gpu(*of) for of in (("V", 1.0, 1.2e8), ("R", 1.2, 2.4e8), ("G", 2.0, 0.6e8), ("Q", 3.0, 0.8e8)))
RATE = 10e9


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_no_cut_that_fits_has_a_faster_slowest_stage(seed: int, in_flight: int) -> None:
    model, gpus = drawn_chain(seed, 8), (V, G, Q)[: 2 + seed % 2]
    best = math.inf
    for order in set(permutations(gpus)):
        for lengths in compositions(8, len(order)):
            slowest, start = 0.0, 0
            for stage, (gpu, length) in enumerate(zip(order, lengths, strict=True)):
                layers = model.layers[start : start + length]
                held = in_flight if stage < len(order) - 1 else 1
                weights = sum(layer.parameter_bytes for layer in layers)
                if held * (sum(layer.output_bytes for layer in layers) + weights) + weights > gpu.memory_bytes:
                    slowest = math.inf
                crossing = model.cut_bytes[start] + model.cut_bytes[start + length]
                slowest = max(slowest, gpu.slowness * sum(x.seconds for x in layers) + crossing / (RATE / 8))
                start += length
            best = min(best, slowest)
    found = hetpipe.partition(model, gpus, RATE, in_flight)
    assert (math.inf if found is None else found.seconds) == pytest.approx(best, rel=1e-12)


def test_as_many_are_in_flight_as_memory_allows() -> None:
    model = drawn_chain(1, 8)
    roomy = [Gpu("V", 1.0, math.inf), Gpu("Q", 3.0, math.inf)]
    assert hetpipe.virtual_worker(model, roomy, RATE).in_flight == 3
    found = []
    for memory in (2e8, 3e8, 4e8, 6e8):
        gpus = [Gpu("V", 1.0, memory), Gpu("Q", 3.0, memory)]
        worker = hetpipe.virtual_worker(model, gpus, RATE, most_in_flight=100)
        found.append(worker.in_flight)
        assert hetpipe.partition(model, gpus, RATE, worker.in_flight + 1) is None
    assert found == sorted(set(found))
    with pytest.raises(LaconicError, match="even with one mini-batch"):
        hetpipe.virtual_worker(model, [Gpu("V", 1.0, 1e6)], RATE)


def test_the_three_ways_to_group_the_papers_sixteen_gpus() -> None:
    """Nodes of four GPUs of a kind: VVVV, RRRR, GGGG, QQQQ; VRGQ four times; VVQQ and RRGG twice, which is
    our reading of the hybrid way."""
    nodes = [[V] * 4, [R] * 4, [G] * 4, [Q] * 4]

    def written(workers: list[list[Gpu]]) -> list[str]:
        return sorted("".join(gpu.kind for gpu in worker) for worker in workers)

    assert written(hetpipe.node_partition(nodes)) == ["GGGG", "QQQQ", "RRRR", "VVVV"]
    assert written(hetpipe.equal_distribution(nodes)) == ["VRGQ"] * 4
    assert written(hetpipe.hybrid_distribution(nodes)) == ["RRGG", "RRGG", "VVQQ", "VVQQ"]
    with pytest.raises(LaconicError, match="as many GPUs"):
        hetpipe.equal_distribution([[V], [R, R]])
    with pytest.raises(LaconicError, match="even number"):
        hetpipe.hybrid_distribution(nodes[:3])
