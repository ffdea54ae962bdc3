"""The search for a layout against brute force, one layout at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from laconic.errors import LaconicError
from laconic.parallel.hybrid.cluster import DGX_A100, Cluster, Constants
from laconic.parallel.hybrid.iteration import iteration_seconds
from laconic.parallel.hybrid.layer import embedding_seconds, head_seconds, layer_seconds
from laconic.parallel.hybrid.memory import RESERVED_SHARE, by_stage
from laconic.parallel.hybrid.runs import Layout, Run, Runs
from laconic.parallel.hybrid.search import Across, search
from laconic.parallel.hybrid.transformer import Transformer, transformer

CONSTANTS = Constants()
CASES = [
    (Transformer(12, 1536, 12, 1024), 4, 12, replace(DGX_A100, memory_bytes=12 * 2**30)),
    (Transformer(8, 3072, 24), 16, 32, replace(DGX_A100, memory_bytes=24 * 2**30, network_bytes_per_second=1e9)),
    (Transformer(6, 4096, 16), 12, 36, replace(DGX_A100, per_host=4, memory_bytes=12 * 2**30)),
]


def everything(model: Transformer, gpus: int, batch: int) -> Iterator[Layout]:
    """Yield every layout, by trying all numbers."""
    upto = range(1, gpus + 1)
    for p, t, d in product(upto, upto, upto):
        if p * t * d != gpus or model.layers % p or model.heads % t or batch % d:
            continue
        for b, v in product(range(1, batch // d + 1), range(1, model.layers // p + 1)):
            if batch // d % b or model.layers // p % v or (v > 1 and (p == 1 or batch // d // b % p)):
                continue
            for recompute, sharded in product(range(3), (False, True)):
                if d > 1 or not sharded:
                    yield Layout(p, t, d, b, v, recompute, sharded)


def fits(run: Run, cluster: Cluster) -> bool:
    most = max(float(stage.total[0]) for stage in by_stage(run))
    return most <= (1 - RESERVED_SHARE) * cluster.memory_bytes


@pytest.mark.parametrize(("model", "gpus", "batch", "cluster"), CASES)
def test_nothing_is_faster_than_what_the_search_finds(
    model: Transformer, gpus: int, batch: int, cluster: Cluster
) -> None:
    found = search(model, gpus, batch, cluster, CONSTANTS, top=5)
    every = list(everything(model, gpus, batch))
    assert found.priced == len(every)
    fitting = [run for run in (Run(model, batch, layout) for layout in every) if fits(run, cluster)]
    assert 0 < found.fitting == len(fitting) < len(every)
    fastest = sorted(iteration_seconds(run, cluster, CONSTANTS) for run in fitting)[:5]
    assert [choice.seconds for choice in found.choices] == pytest.approx(fastest)
    for choice in found.choices:
        assert fits(Run(model, batch, choice.layout), cluster)
        assert iteration_seconds(Run(model, batch, choice.layout), cluster, CONSTANTS) == pytest.approx(choice.seconds)


def one_forward_one_backward(forward: list[float], backward: list[float], count: int) -> float:
    """The makespan of 1F1B on unequal stages: every pass starts when its stage is free and what it needs is there."""
    stages = len(forward)
    orders = []
    for k in range(stages):
        warm = min(count, stages - k - 1)
        passes = [("F", i) for i in range(warm)]
        for i in range(count - warm):
            passes += [("F", warm + i), ("B", i)]
        orders.append(passes + [("B", i) for i in range(count - warm, count)])
    done: dict[tuple[str, int, int], float] = {}
    free, at = [0.0] * stages, [0] * stages
    while any(at[k] < len(orders[k]) for k in range(stages)):
        for k in range(stages):
            while at[k] < len(orders[k]):
                kind, i = orders[k][at[k]]
                if kind == "F":
                    needs = [("F", k - 1, i)] if k else []
                else:
                    needs = [("B", k + 1, i)] if k < stages - 1 else [("F", k, i)]
                if any(need not in done for need in needs):
                    break
                start = max([free[k], *(done[need] for need in needs)])
                free[k] = done[kind, k, i] = start + (forward[k] if kind == "F" else backward[k])
                at[k] += 1
    return max(free)


@pytest.mark.parametrize(("model", "gpus", "batch", "cluster"), CASES)
def test_the_choice_is_good_by_an_exact_timeline_too(
    model: Transformer, gpus: int, batch: int, cluster: Cluster
) -> None:
    """Regret: each plain layout's pipeline is played pass by pass, with a heavier first and last stage.

    Messages and memory are free here, so that both tell the time of the same passes.
    """
    free = Constants(0.75, 1e9, 30e-6, 1e-30, 1e-30, 1e9, 1e9)

    def played(run: Run) -> float:
        runs, layout = Runs.of([run]), run.layout
        layer = layer_seconds(runs, cluster, free)
        head, first = (float(part(runs, cluster, free)[0]) for part in (head_seconds, embedding_seconds))
        own = model.layers / layout.pipeline
        forward = [own * float(layer.forward[0])] * layout.pipeline
        backward = [own * float(layer.backward[0])] * layout.pipeline
        for k, more in ((-1, head), (0, first)):
            forward[k] += more / 3
            backward[k] += 2 * more / 3
        return one_forward_one_backward(forward, backward, batch // layout.data // layout.microbatch)

    every = [layout for layout in everything(model, gpus, batch) if layout.chunks == 1 and not layout.sharded]
    exact = {layout: played(Run(model, batch, layout)) for layout in every}
    told = {layout: iteration_seconds(Run(model, batch, layout), cluster, free) for layout in every}
    assert all(told[layout] == pytest.approx(exact[layout], rel=0.05) for layout in every)
    assert exact[min(told, key=told.__getitem__)] <= 1.01 * min(exact.values())


def test_a_slow_network_prefers_what_sends_less() -> None:
    model, batch = transformer("gpt3-6.7b")
    slow = replace(DGX_A100, network_bytes_per_second=1e8)
    ways = {"plain": Across(), "half": Across(1.0), "gathered": Across(0.06, gathered=True)}
    found = search(model, 64, batch, slow, CONSTANTS, strategies=ways, top=2000)
    by_way = {name: {c.layout: c for c in found.choices if c.strategy == name and c.layout.data > 1} for name in ways}
    assert all(by_way.values())
    plain = {(c.layout.pipeline, c.layout.tensor, c.layout.data): c for c in by_way["plain"].values()}
    seen = 0
    for name, factor in (("half", lambda d: 0.5), ("gathered", lambda d: 0.03 * d / 2)):
        for choice in by_way[name].values():
            key = (choice.layout.pipeline, choice.layout.tensor, choice.layout.data)
            if key in plain and choice.layout.pipeline == 1:  # no shared embedding is summed beside
                ratio = choice.gradient_seconds / plain[key].gradient_seconds
                assert ratio == pytest.approx(factor(choice.layout.data))
                seen += 1
    assert seen
    assert found.choices[0].strategy != "plain"


def test_one_replica_has_nothing_to_choose_across() -> None:
    model = Transformer(8, 1024, 8, 512, 1024)
    found = search(model, 8, 1, DGX_A100, CONSTANTS, strategies={"a": Across(), "b": Across(1.0)}, top=10**6)
    assert all(choice.strategy == "a" and not choice.layout.sharded for choice in found.choices)


def test_gpus_that_divide_nothing_are_refused() -> None:
    with pytest.raises(LaconicError, match="more divisors"):
        search(Transformer(12, 1024, 16), 7, 16, DGX_A100, CONSTANTS)


def test_what_never_fits_says_how_much_it_needs() -> None:
    model, batch = transformer("megatron-1t")
    found = search(model, 64, batch, DGX_A100, CONSTANTS)
    assert not found.choices and found.fitting == 0 and found.least_bytes > DGX_A100.memory_bytes
