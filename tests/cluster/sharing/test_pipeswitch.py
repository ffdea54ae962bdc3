"""PipeSwitch: the pruned search finds the best groups, and a start is faster for it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from laconic.cluster.sharing.pipeswitch import Transfer, finish, group
from laconic.errors import ClusterError


def best_of_all(nbytes: list[float], compute: list[float], way: Transfer) -> float:
    count = len(nbytes)
    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, count), k) for k in range(count))
    return min(finish(nbytes, compute, (*cut, count), way) for cut in cuts)


@pytest.mark.technique("pipeswitch", check=1)
@pytest.mark.parametrize("seed", range(12))
def test_the_pruned_search_finds_the_best_groups(seed: int) -> None:
    draws = np.random.default_rng(seed)
    for count in (1, 2, 5, 8, 10 if seed < 11 else 16):
        nbytes = (10 ** draws.uniform(4, 7, count)).tolist()
        compute = (10 ** draws.uniform(-5, -3, count)).tolist()
        way = Transfer(float(10 ** draws.uniform(9, 10.5)), float(10 ** draws.uniform(-5.5, -3.5)))
        found = group(nbytes, compute, way)
        assert found.ends[-1] == count and list(found.ends) == sorted(set(found.ends))
        assert found.seconds == pytest.approx(finish(nbytes, compute, found.ends, way), rel=1e-12)
        assert found.seconds == pytest.approx(best_of_all(nbytes, compute, way), rel=1e-9)
        assert found.seconds <= finish(nbytes, compute, (count,), way) * (1 + 1e-12)
        assert found.seconds <= finish(nbytes, compute, tuple(range(1, count + 1)), way) * (1 + 1e-12)


def residual_net() -> tuple[list[float], list[float]]:
    """Bytes and seconds of 152 layers: bottlenecks of four stages, 60 million parameters, 28 ms of forward passes."""
    layers = [(3, 64, 7, 112)]
    wide, size = 64, 56
    for stage, blocks in enumerate((3, 8, 36, 3)):
        middle = 64 * 2**stage
        for _ in range(blocks):
            layers += [(wide, middle, 1, size), (middle, middle, 3, size), (middle, 4 * middle, 1, size)]
            wide = 4 * middle
        size //= 2
    layers.append((2048, 1000, 1, 1))
    weights = [4.0 * i * o * k * k for i, o, k, _ in layers]
    work = [float(i * o * k * k * s * s) for i, o, k, s in layers]
    return weights, [0.028 * w / sum(work) for w in work]


@pytest.mark.parametrize("call", [20e-6, 250e-6])
def test_a_residual_net_starts_sooner_than_after_its_transfer(call: float) -> None:
    nbytes, compute = residual_net()
    assert 220e6 < sum(nbytes) < 245e6 and len(nbytes) == 152
    way = Transfer(12e9, call)
    found = group(nbytes, compute, way)
    whole = finish(nbytes, compute, (len(nbytes),), way)
    assert whole / found.seconds >= 1.5
    each = finish(nbytes, compute, tuple(range(1, 153)), way)
    assert each / found.seconds >= (1 - 1e-9 if call < 1e-4 else 1.2)
    assert 1 < len(found.ends) < 152


def best_by_programming(nbytes: list[float], compute: list[float], way: Transfer) -> float:
    """The same by dynamic programming over the number of groups: with it and the layers, what was sent is fixed."""
    copied = np.concatenate([[0.0], np.cumsum(nbytes) / way.bytes_per_second])
    worked = np.concatenate([[0.0], np.cumsum(compute)])
    done, best = np.where(np.arange(len(copied)) == 0, 0.0, np.inf), np.inf
    for groups in range(1, len(copied)):
        sent = groups * way.call_seconds + copied
        done = np.array(
            [
                np.min(np.maximum(sent[e], done[:e]) + worked[e] - worked[:e]) if e else np.inf
                for e in range(len(copied))
            ]
        )
        best = min(best, float(done[-1]))
    return best


@pytest.mark.technique("pipeswitch", check=1)
@pytest.mark.parametrize("faster", [1.0, 0.3])
def test_the_search_ends_for_hundreds_of_layers_whichever_takes_longer(faster: float) -> None:
    nbytes, compute = residual_net()
    way, seconds = Transfer(12e9, 10e-6), [faster * s for s in compute]
    found = group(nbytes, seconds, way)
    assert found.seconds == pytest.approx(finish(nbytes, seconds, found.ends, way), rel=1e-12)
    assert found.seconds == pytest.approx(best_by_programming(nbytes, seconds, way), rel=1e-9)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ClusterError, match="every layer"):
        group([1.0], [], Transfer(1.0))
    with pytest.raises(ClusterError, match="bandwidth"):
        Transfer(0.0)
