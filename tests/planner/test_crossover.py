"""From how many workers on a dense exchange is cheaper than gathered payloads: as counted one number after another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from laconic.api.dry_run import _crosses_in_shards
from laconic.compression.optional import prices_of
from laconic.network.network_tree import Level, Network
from laconic.planner.advise import advise
from laconic.planner.candidates import chains
from laconic.planner.crossover import (
    crossover_note,
    dense_exchange,
    dense_sends_less_from,
    dense_takes_less_from,
    gathers,
    two_hops_instead,
)
from laconic.planner.deployment import Deployment
from laconic.planner.price import Pricer
from laconic.strategy import Sentence, Strategy, Tiers
from laconic.values.profile import CodecTimes, ModelTimes, Profile, Seconds, TensorTime
from laconic.values.tensor_spec import TensorSpec

SPECS = [TensorSpec("w", (300, 200), torch.float32), TensorSpec("b", (200,), torch.float32)]
SPECS += [TensorSpec("n", (7,), torch.int64)]
DENSE = dense_exchange()
MANY = 700


def sent_bytes(strategy: Strategy, workers: int, members: int) -> float:
    """What a worker sends among all or between hosts, in the plainest way."""
    tiers = isinstance(strategy, Tiers)
    sentence = strategy.levels[-1][0] if tiers else strategy  # type: ignore[attr-defined]
    size = workers // members if tiers else workers
    whole = 0.0
    for spec in SPECS:
        if not sentence.compressor.accepts(spec):
            whole += 2 * (size - 1) / size * spec.nbytes
            continue
        for meets, nbytes in prices_of(sentence.compressor, spec, size):
            whole += nbytes * {"gather": size - 1, "reduce": 2 * (size - 1) / size}[meets]
    stack = tuple((level, name) for level, name in strategy.levels) if tiers else ()  # type: ignore[attr-defined]
    return whole / members if tiers and _crosses_in_shards(stack, sentence, SPECS) else whole


def brute_force(strategy: Strategy, dense: Strategy, members: int = 1) -> int | None:
    """The number of workers behind the last for which the dense exchange does not send less."""
    step = members if isinstance(strategy, Tiers) else 1
    counts = range(2 * step, MANY + 1, step)
    not_less = [n for n in counts if not sent_bytes(dense, n, members) < sent_bytes(strategy, n, members)]
    return None if not_less and not_less[-1] == counts[-1] else (not_less[-1] + step if not_less else counts[0])


@pytest.mark.parametrize("chain", chains())
def test_the_number_is_the_one_behind_the_last_for_which_gathering_sends_less(chain: str) -> None:
    sentence = Strategy.parse(f"bsp / {chain}")
    found = dense_sends_less_from(sentence, DENSE, SPECS)
    if not gathers(sentence, SPECS):
        assert found is None
        return
    expected = brute_force(sentence, DENSE)
    assert found == expected if expected is not None else found is None or found > MANY
    assert found is None or found >= 2


@pytest.mark.parametrize("members", [2, 8])
@pytest.mark.parametrize("outer", ["topk(0.1)+ef", "qsgd+ef", "scaled_sign", "one_bit+ef", "cast_bf16"])
@pytest.mark.parametrize("inner", ["bsp", "bsp / cast_bf16", "bsp / qsgd"])
def test_tiers_are_counted_in_whole_hosts(inner: str, outer: str, members: int) -> None:
    tiers = Strategy.parse(f"[{inner}]@node > [bsp / {outer}]@site")
    dense = Strategy.parse(f"[{inner}]@node > [bsp / {DENSE.chain}]@site")
    found = dense_sends_less_from(tiers, DENSE, SPECS, members)
    expected = brute_force(tiers, dense, members) if outer != "cast_bf16" else None
    assert found == expected and (found is None or found % members == 0)


PROFILE = Profile(
    ModelTimes(
        tuple(TensorTime(f"w{i}", (500, 400), "float32", 0.01) for i in range(3)),
        Seconds(0.01),
        Seconds(0.03),
        Seconds(0.001),
    ),
    codecs=(CodecTimes("topk(0.1)+error_feedback", 1e-4, 1e-9, 1e-4, 1e-9), CodecTimes(DENSE.chain, 1e-5, 0, 1e-5, 0)),
)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("bsp / topk(0.1)+ef", (Level(1, 1e8, 1e-5),)),
        ("bsp / topk(0.1)+ef", (Level(1, 1e10, 1e-6), Level(2, 1e8, 1e-5))),
        ("[bsp]@node > [bsp / topk(0.1)+ef]@site", (Level(1, 1e10, 1e-6), Level(4, 2e8, 1e-5))),
    ],
)
def test_on_a_network_times_are_compared(text: str, levels: tuple[Level, ...]) -> None:
    strategy, members = Strategy.parse(text), levels[-1].workers
    deployment = Deployment(PROFILE, Network(8 * members, levels), 8 * members)
    found = dense_takes_less_from(strategy, DENSE, deployment)
    dense: Strategy = DENSE
    if isinstance(strategy, Tiers):
        dense = Tiers((strategy.levels[0], (DENSE, strategy.levels[1][1])))

    def takes_less(workers: int) -> bool:
        pricer = Pricer(replace(deployment, workers=workers, network=Network(workers, levels)))
        return pricer.price(dense).seconds < pricer.price(strategy).seconds

    assert found is not None
    expected = {workers: workers >= found for workers in range(2 * members, 40 * members, members)}
    assert expected == {workers: takes_less(workers) for workers in expected} and not all(expected.values())


def test_two_hops_are_suggested_where_a_codec_can() -> None:
    assert str(two_hops_instead(Strategy.parse("bsp / qsgd+ef"))) == "bsp / qsgd+two_hop+error_feedback / allreduce"
    assert two_hops_instead(Strategy.parse("bsp / sidco+ef")) is None, "its length depends on the values"
    assert two_hops_instead(Strategy.parse("bsp / int8+two_hop")) is None, "it has them"
    instead = two_hops_instead(Strategy.parse("[bsp]@node > [bsp / int8+ef]@site"))
    assert isinstance(instead, Tiers) and "two_hop" in str(instead.levels[-1][0])
    assert instead is not None and dense_sends_less_from(instead, DENSE, SPECS, 4) is None


def test_a_note_says_where_a_number_of_workers_stands() -> None:
    sentence = Strategy.parse("bsp / qsgd+ef")
    assert isinstance(sentence, Sentence)
    least = dense_sends_less_from(sentence, DENSE, SPECS)
    assert f"from {least} workers on" in (crossover_note(sentence, SPECS) or "")
    assert f"(there are {2})" in (crossover_note(sentence, SPECS, 2) or "")
    assert f", and there are {least}" in (crossover_note(sentence, SPECS, least) or "")
    assert crossover_note(Strategy.parse("bsp / cast_bf16"), SPECS) is None


def test_a_plan_warns_from_that_number_on() -> None:
    for workers, warned in ((4, False), (16, True)):
        deployment = Deployment(PROFILE, Network.flat(workers, 1e8, 1e-5), workers)
        advice = advise(deployment, "model", "flat", consider=["bsp / topk(0.1)+ef", "bsp / power_sgd(4)+ef"])
        assert len(advice.warnings) == warned
        if warned:
            assert "from 7 workers on" in advice.warnings[0] and "two_hop" in advice.warnings[0]
            assert type(advice).from_json(advice.to_json()).warnings == advice.warnings
