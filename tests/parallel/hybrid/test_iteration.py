"""The cost model of an iteration: its limits, its parts, and constants that a fit finds again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.parallel.hybrid.cluster import DGX_A100, Cluster, Constants
from laconic.parallel.hybrid.fit import fitted
from laconic.parallel.hybrid.iteration import iteration_seconds, priced
from laconic.parallel.hybrid.layer import layer_seconds, product_seconds
from laconic.parallel.hybrid.messages import send_seconds, tensor_seconds
from laconic.parallel.hybrid.published import sc21
from laconic.parallel.hybrid.runs import FULL, NONE, SELECTIVE, Layout, Run, Runs
from laconic.parallel.hybrid.transformer import Transformer

MODEL = Transformer(24, 4096, 32)
CONSTANTS = Constants()


def run(batch: int = 64, model: Transformer = MODEL, **layout: object) -> Run:
    return Run(model, batch, Layout(**layout))  # type: ignore[arg-type]


def seconds(one: Run, cluster: Cluster = DGX_A100, constants: Constants = CONSTANTS) -> float:
    return iteration_seconds(one, cluster, constants)


def test_with_ideal_hardware_only_the_operations_remain() -> None:
    """Free memory, links, launches and full tiles: an iteration takes its operations over the peak."""
    free = Constants(1.0, 1e9, 1e-30, 1e-30, 1e-30, 1e9, 1e9)
    for size in (8192, 16384):
        model = Transformer(24, size, 64)
        one = run(512, model, microbatch=64)
        ideal = model.operations(512) / DGX_A100.operations_per_second
        assert seconds(one, constants=free) == pytest.approx(ideal, rel=0.03)
        without = run(512, model, microbatch=64, recompute=NONE)
        assert seconds(without, constants=free) == pytest.approx(0.75 * ideal, rel=0.03)


def test_equal_stages_follow_the_closed_formula() -> None:
    """Without head, embedding and messages an iteration is (m + (p-1)/v)(tf + tb)."""
    free = replace(CONSTANTS, collective_seconds=1e-30, step_seconds=1e-30, link_share=1e9, network_share=1e9)
    model = Transformer(24, 2304, 24, vocabulary=1)
    for pipeline, chunks, microbatch in ((4, 1, 1), (4, 3, 2), (8, 3, 1), (6, 2, 1)):
        one = Runs.of([run(48, model, pipeline=pipeline, chunks=chunks, microbatch=microbatch)])
        layer = layer_seconds(one, DGX_A100, free)
        stage = 24 / pipeline * float((layer.forward + layer.backward)[0])
        expected = (48 / microbatch + (pipeline - 1) / chunks) * stage
        assert float(priced(one, DGX_A100, free).pipeline[0]) == pytest.approx(expected, rel=0.06)


def test_small_products_reach_less_of_the_peak() -> None:
    sizes = np.array([256.0, 1024.0, 4096.0, 16384.0])
    taken = product_seconds(sizes, sizes, sizes, DGX_A100, CONSTANTS)
    share = 2 * sizes**3 / taken / DGX_A100.operations_per_second
    assert np.all(np.diff(share) > 0) and share[-1] == pytest.approx(CONSTANTS.product_share, rel=0.02)


def test_a_small_layer_takes_the_time_of_its_launches() -> None:
    tiny = Transformer(12, 256, 4, 128)
    slow, fast = (replace(CONSTANTS, launch_seconds=each) for each in (60e-6, 30e-6))
    runs = Runs.of([run(8, tiny, recompute=NONE)])
    layers = [layer_seconds(runs, DGX_A100, each) for each in (slow, fast)]
    assert float(layers[0].forward[0] / layers[1].forward[0]) == pytest.approx(2, rel=0.01)
    assert float(layers[1].forward[0]) == pytest.approx(30 * 30e-6, rel=0.01)


def test_more_recomputation_takes_longer() -> None:
    times = [seconds(run(recompute=how)) for how in (NONE, SELECTIVE, FULL)]
    assert times[0] < times[1] < times[2]
    assert times[2] / times[0] == pytest.approx(4 / 3, rel=0.05)


def test_tensors_across_hosts_are_slow() -> None:
    ranks = [Runs.of([run(tensor=t)]) for t in (8, 16)]
    inside, across = (float(tensor_seconds(one, DGX_A100, CONSTANTS)[0]) for one in ranks)
    assert across > 1.5 * inside
    assert seconds(run(tensor=8, data=2)) < seconds(run(tensor=16, data=1))


def test_a_collective_waits_for_each_doubling_of_its_ranks() -> None:
    slow, fast = (replace(CONSTANTS, collective_seconds=each) for each in (100e-6, 20e-6))
    for ranks, doublings in ((1, 0), (2, 1), (8, 3)):
        one = Runs.of([run(tensor=ranks)])
        more = float((tensor_seconds(one, DGX_A100, slow) - tensor_seconds(one, DGX_A100, fast))[0])
        assert more == pytest.approx(80e-6 * doublings)


def test_each_rank_sends_a_part_between_stages() -> None:
    whole, split = (Runs.of([run(tensor=8, pipeline=2, split_sends=each)]) for each in (False, True))
    nbytes = 2 * 2048 * 4096
    rate = DGX_A100.network_bytes_per_second * CONSTANTS.network_share
    latency = CONSTANTS.collective_seconds
    assert float(send_seconds(whole, DGX_A100, CONSTANTS)[0]) == pytest.approx(nbytes / rate + latency)
    gathered = 7 / 8 * nbytes / (DGX_A100.link_bytes_per_second * CONSTANTS.link_share)
    assert float(send_seconds(split, DGX_A100, CONSTANTS)[0]) == pytest.approx(nbytes / 8 / rate + gathered + latency)


def test_gradients_take_the_bytes_of_a_ring_and_may_be_hidden() -> None:
    slow = replace(DGX_A100, network_bytes_per_second=1e9)
    alone = Runs.of([run(tensor=8, data=4)])
    taken = float(priced(alone, slow, CONSTANTS).gradients[0])
    parameters = MODEL.parameters / 8
    assert taken == pytest.approx(2 * 3 / 4 * 2 * parameters / (1e9 * CONSTANTS.network_share), rel=0.01)
    half = Runs.of([run(tensor=8, data=4, gradient_bytes=1.0)])
    assert float(priced(half, slow, CONSTANTS).gradients[0]) == pytest.approx(taken / 2)
    hidden = Runs.of([run(tensor=8, data=4, overlapped=True)])
    assert float(priced(hidden, slow, CONSTANTS).gradients[0]) < taken
    large = Runs.of([run(tensor=8, data=4, microbatch=16, overlapped=True)])
    assert float(priced(large, DGX_A100, CONSTANTS).gradients[0]) == 0


def test_sends_in_turn_and_exact_sums_take_longer() -> None:
    plain = seconds(run(pipeline=4, tensor=8, data=2))
    assert seconds(run(pipeline=4, tensor=8, data=2, sends_in_turn=True)) > plain
    assert seconds(run(pipeline=4, tensor=8, data=2, sum_bytes=4.0)) > plain
    assert seconds(run(pipeline=4, tensor=8, data=2, sharded=True)) < plain


def test_many_at_once_are_as_each_alone() -> None:
    rows = [row.run for row in sc21()]
    together = priced(Runs.of(rows), DGX_A100, CONSTANTS).total
    assert together == pytest.approx([seconds(one) for one in rows], rel=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_fit_finds_the_constants_that_made_the_times(seed: int) -> None:
    rng = np.random.default_rng(seed)
    true = Constants(0.62, 0.83, 45e-6, 120e-6, 20e-3)
    rows = []
    for _ in range(150):  # so many that what the fit starts from counts for little
        pipeline, tensor, data, microbatch = (2 ** int(rng.integers(0, 3)) for _ in range(4))
        model = Transformer(int(rng.choice([12, 24])), int(rng.choice([512, 2048, 4096])), 16, 1024)
        rows.append(run(16, model, pipeline=pipeline, tensor=tensor, data=data, microbatch=microbatch, recompute=NONE))
    times = [seconds(one, constants=true) for one in rows]
    names = ("product_share", "memory_share", "launch_seconds", "collective_seconds", "step_seconds")
    found = fitted(rows, times, names, DGX_A100)
    for name in names:
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.15)
    assert found.link_share == Constants().link_share


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(LaconicError, match="does not divide"):
        run(10, data=4)
    with pytest.raises(LaconicError, match="heads that divide"):
        Transformer(2, 100, 3)
    with pytest.raises(LaconicError, match="as many of each"):
        fitted([], [], ("product_share",), DGX_A100)
    with pytest.raises(LaconicError, match="positive rates"):
        replace(DGX_A100, memory_bytes=0.0)
