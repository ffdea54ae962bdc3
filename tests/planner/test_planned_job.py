"""Jobs of a cluster whose speed is the planner's price of a step where their workers are."""

from __future__ import annotations

import pytest

import laconic
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.replay import replay
from laconic.network.network_tree import Level, Network
from laconic.planner.codec_times import codecs_on
from laconic.planner.planned_job import HostLinks, PlannedSteps, PlannedTraining
from laconic.planner.sources import subject_of
from laconic.planner.values import PlanError

LINKS = HostLinks(1.2e12, 1e10, 2e-5)
SENTENCES = ("bsp", "bsp / power_sgd(32)+ef")
WHOLE = dict(zip(SENTENCES, ["bsp / none / allreduce", "bsp / power_sgd(32)+error_feedback / allreduce"], strict=True))
CLUSTER = Cluster.uniform(4, 4)


def steps(*strategies: str) -> PlannedSteps:
    subject = subject_of("VGG-16", (), 1, "", "v100", 32)
    assert subject.gpu is not None
    return PlannedSteps(subject.profile, strategies or SENTENCES, LINKS, codecs_on(subject.gpu))


def held(*counts: int, share: float = 1.0) -> Grant:
    return Grant(tuple(Slot(host, device, share) for host, count in enumerate(counts) for device in range(count)))


@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize(
    ("counts", "network"),
    [
        ((4,), Network.flat(4, LINKS.inside)),
        ((1, 1, 1), Network.flat(3, LINKS.between, LINKS.latency_seconds)),
        ((4, 4), Network(8, (Level(1, LINKS.inside), Level(4, LINKS.between, LINKS.latency_seconds)))),
        ((1, 3), Network.flat(4, LINKS.between / 3, LINKS.latency_seconds)),
    ],
    ids=["one host", "one each", "two hosts", "unequal hosts"],
)
def test_the_speed_on_a_placement_is_that_of_the_plan(counts: tuple[int, ...], network: Network, sentence: str) -> None:
    advice = laconic.plan("VGG-16", workers=sum(counts), network=network, gpu="v100", batch=32, consider=[sentence])
    (option,) = (one for one in advice.options if one.strategy == WHOLE[sentence])
    training = PlannedTraining(1e6, steps(sentence))
    rate = training.rate(0.0, held(*counts), CLUSTER, ())
    computing = training.steps.profile.model.seconds
    assert rate.speed == pytest.approx(sum(counts) * computing / option.step_seconds, rel=1e-6)
    assert rate.until == 1e6 and 0 <= rate.communicating < 1


def test_the_strategy_is_the_fastest_on_each_placement() -> None:
    both, bsp, power = steps(), *map(steps, SENTENCES)
    assert [both.on(counts).strategy for counts in ((4,), (4, 4))] == list(SENTENCES)
    for counts in ((1,), (4,), (4, 4), (2, 1)):
        assert both.on(counts).price.seconds == min(one.on(counts).price.seconds for one in (bsp, power))


def test_a_replay_ends_when_the_price_says_so() -> None:
    """Two jobs of six workers: the first has a host and a half, the second a half and a whole one."""
    training = PlannedTraining(1e5, steps())
    outcome = replay([Job(f"job{k}", 0.0, 6, training) for k in range(2)], CLUSTER, Fifo())
    seconds = 1e5 / 6 * training.steps.on((2, 4)).price.seconds / training.steps.profile.model.seconds
    assert outcome.completion_times.tolist() == pytest.approx([seconds] * 2)


def test_half_of_a_gpu_computes_for_twice_as_long() -> None:
    training = PlannedTraining(1e5, steps("bsp"))
    price = training.steps.on((2, 2)).price
    rate = training.rate(0.0, held(2, 2, share=0.5), CLUSTER, ())
    alone = training.steps.profile.model.seconds
    assert rate.speed == pytest.approx(4 * alone / (price.seconds + price.computing_seconds))


def test_steps_without_strategies_are_refused() -> None:
    with pytest.raises(PlanError, match="need a strategy"):
        PlannedSteps(steps().profile, (), LINKS)
