"""Pipelines as data: what the verifier refuses, makespans against formulas, memory, versions, messages."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laconic.errors import PipelineError, StrategyError
from laconic.language.grammar import parse_schedule
from laconic.network.network_tree import Network
from laconic.parallel.pipeline.costs import StageCosts
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedules.gpipe import throughput
from laconic.parallel.pipeline.schedules.pipedream import in_flight
from laconic.parallel.pipeline.schedules.sliced import sliced, slices
from laconic.parallel.pipeline.schedules.varuna import opportunistic
from laconic.parallel.pipeline.task import Op, Task
from laconic.parallel.pipeline.timeline import timeline

WORDS = (
    "model_parallel_naive",
    "gpipe",
    "gpipe(recompute=true)",
    "one_f_one_b",
    "one_f_one_b(recompute=true)",
    "interleaved_1f1b",
    "interleaved_1f1b(chunks=3)",
    "chimera",
    "pipedream",
    "ooo_backprop_pp",
    "ooo_backprop_pp(groups=2)",
    "varuna",
    "autopipe",
    "zero_bubble",
)

numbers = st.integers(1, 9)


def made(word: str, devices: int, microbatches: int) -> Pipeline:
    pipeline: Pipeline = parse_schedule(word).pipeline(devices, microbatches)
    return pipeline


@pytest.mark.parametrize("most", [(6, 10), pytest.param((8, 16), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("word", WORDS)
def test_every_schedule_is_verified_for_all_sizes_and_reads_as_it_is_written(word: str, most: tuple[int, int]) -> None:
    made_any = 0
    for devices in range(1, most[0] + 1):
        for microbatches in range(1, most[1] + 1):
            try:
                pipeline = made(word, devices, microbatches)
            except PipelineError as error:
                assert word.startswith(("interleaved", "chimera")) and "needs" in str(error)
                continue
            made_any += 1
            assert pipeline.devices == devices
            again = Pipeline.parse(str(pipeline), pipeline.name, pipeline.stashes)
            assert again.orders == pipeline.orders
            busy = timeline(pipeline, StageCosts.equal(pipeline.stages, 1.0, 2.0)).busy
            passes = sum(pipeline.size_of(k) for k in range(pipeline.microbatches)) * pipeline.stages
            assert sum(busy) == pytest.approx(
                3 * passes + sum(t.op is Op.RECOMPUTE for o in pipeline.orders for t in o)
            )
    assert made_any > 20


GOOD = "F0.0 F0.1 B0.0 B0.1 U0\nF1.0 B1.0 F1.1 B1.1 U1"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD.replace("B0.1 ", ""), "backward pass once"),
        (GOOD.replace("F0.1", "F0.0"), "twice"),
        (GOOD.replace("B0.0 B0.1", "I0.0 B0.0 B0.1"), "as one task or as two"),
        (GOOD.replace("F0.1 B0.0", "B0.0 F0.1").replace("F0.0 B0.0", "B0.0 F0.0"), "in the order"),
        (GOOD.replace(" U0", ""), "never applies"),
        (GOOD.replace("B0.0 B0.1 U0", "B0.0 U0 B0.1"), "never applies"),
        (GOOD.replace("B0.0 B0.1 U0", "B0.0 U0 B0.1 U0"), "stash"),
        ("F0.0 B0.0 F0.1 B0.1 U0\nF1.1 F1.0 B1.0 B1.1 U1", "never ends: device"),
        ("F0.0 F0.1 B0.0 U0\nB0.1 U0", "on several devices"),
        ("F0.0 B0.0 U0 U0\nF0.1 B0.1 U0", "equally often"),
        ("F0.0 X0.0", "no task"),
    ],
)
def test_orders_that_are_no_training_step_are_refused(text: str, complaint: str) -> None:
    Pipeline.parse(GOOD)
    with pytest.raises(PipelineError, match=complaint):
        Pipeline.parse(text)


def test_words_that_are_no_schedules_are_refused() -> None:
    with pytest.raises(StrategyError, match="one schedule"):
        parse_schedule("gpipe / topk")
    with pytest.raises(StrategyError, match="belongs to compression"):
        parse_schedule("topk")


@pytest.mark.technique("gpipe", check=1)
@pytest.mark.technique("one_f_one_b", check=1)
@given(st.integers(1, 8), st.integers(1, 16), numbers, numbers)
def test_flushed_pipelines_take_as_long_as_the_formula_says(p: int, m: int, tf: int, tb: int) -> None:
    costs = StageCosts.equal(p, tf, tb)
    for word in ("gpipe", "one_f_one_b"):
        found = timeline(made(word, p, m), costs)
        assert found.seconds == (m + p - 1) * (tf + tb)
        assert found.bubble == pytest.approx((p - 1) / (m + p - 1))
    assert made("one_f_one_b", p, m).peak_in_flight == tuple(min(p - i, m) for i in range(p))
    assert made("gpipe", p, m).peak_in_flight == (m,) * p


@pytest.mark.technique("gpipe", check=3)
def test_the_published_ratios_of_gpipe() -> None:
    """Table 2 of the paper, Transformer-48 with m = 32: 1.8, 3.4 and 6.3 times two partitions with m = 1."""
    for p, published in zip((2, 4, 8), (1.8, 3.4, 6.3), strict=True):
        simulated = p * 32 * 3 / timeline(made("gpipe", p, 32), StageCosts.equal(p, 1.0, 2.0)).seconds
        assert simulated == pytest.approx(throughput(p, 32))
        assert simulated / throughput(2, 1) == pytest.approx(published, rel=0.08)


@pytest.mark.technique("model_parallel_naive", check=2)
@given(st.integers(2, 6), st.lists(numbers, min_size=12, max_size=12))
def test_layer_wise_parallelism_takes_the_sum_of_everything(p: int, times: list[int]) -> None:
    costs = StageCosts(tuple(times[:p]), tuple(times[6 : 6 + p]), activation_bytes=(1e6,) * (p - 1))
    network = Network.flat(p, 8e6, latency_seconds=0.25)
    found = timeline(made("model_parallel_naive", p, 1), costs, network)
    assert found.seconds == pytest.approx(sum(costs.forward + costs.backward) + 2 * (p - 1) * 1.25)
    assert sum(found.sent_bytes) == 2 * 1e6 * (p - 1)
    assert found.sent_bytes[0] == 1e6  # its activation; the gradient is the next device's
    assert max(found.busy) / found.seconds < 1 and 1 - found.bubble <= 1 / p + 1e-9


@pytest.mark.technique("interleaved_1f1b", check=1)
@pytest.mark.parametrize("p", [4, 6, 8])
@pytest.mark.parametrize("v", [2, 3])
def test_interleaving_divides_the_bubble(p: int, v: int) -> None:
    for m in (p, 2 * p, 3 * p):
        found = timeline(made(f"interleaved_1f1b(chunks={v})", p, m), StageCosts.equal(p * v, 6 / v, 12 / v))
        assert found.seconds == pytest.approx((m + (p - 1) / v) * 18)


@pytest.mark.technique("interleaved_1f1b", check=2)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (6, 6), (8, 24)])
def test_one_chunk_is_one_f_one_b(p: int, m: int) -> None:
    assert made("interleaved_1f1b(chunks=1)", p, m).orders == made("one_f_one_b", p, m).orders


@pytest.mark.technique("chimera", check=1)
@pytest.mark.parametrize("d", [4, 6, 8, 12, 16])
def test_two_directions_halve_the_bubble(d: int) -> None:
    for n in (d, 2 * d, 4 * d):
        assert timeline(made("chimera", d, n), StageCosts.equal(d)).seconds == 2 * n + d - 2
    assert timeline(made("one_f_one_b", d, d), StageCosts.equal(d)).seconds == 2 * (2 * d - 1)


@pytest.mark.technique("chimera", check=3)
@pytest.mark.parametrize("d", [4, 6, 8, 12, 16])
def test_chimeras_devices_hold_nearly_equally_many(d: int) -> None:
    for n in (d, 3 * d):
        held = made("chimera", d, n).peak_in_flight
        assert min(held) >= d / 2 + 1 and max(held) <= d
    assert min(made("chimera", d, d).peak_in_flight) == d / 2 + 1


@pytest.mark.technique("pipedream", check=2)
@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_pipedreams_workers_alternate_and_do_not_idle(p: int) -> None:
    m = 6 * p
    pipeline = made("pipedream", p, m)
    assert in_flight((1,) * p) == p and in_flight((7, 1)) == 2 and in_flight((15, 1)) == 2
    found = timeline(pipeline, StageCosts.equal(p, 3.0, 3.0))
    for row in found.bars:
        steady = [bar for bar in row if bar.task.op is not Op.UPDATE and 2 * p * 6 <= bar.begin <= (m - p) * 6]
        assert {(a.task.op, b.task.op) for a, b in pairwise(steady)} == {
            (Op.FORWARD, Op.BACKWARD),
            (Op.BACKWARD, Op.FORWARD),
        }
        assert all(a.end == b.begin for a, b in pairwise(steady))


@pytest.mark.technique("pipedream", check=3)
def test_pipedreams_versions() -> None:
    pipeline = made("pipedream", 4, 12)
    for stage in range(4):
        for k in range(12):
            assert pipeline.versions[stage, k] == max(0, k - (3 - stage))
    assert pipeline.peak_versions == (4, 3, 2, 1)
    with pytest.raises(PipelineError, match="stash"):
        Pipeline("without", pipeline.orders)


def test_replicas_take_turns_and_update_together() -> None:
    pipeline = made('pipedream(replicas="3-1")', 4, 12)
    assert [pipeline.device_of[0, k] for k in range(6)] == [0, 1, 2, 0, 1, 2]
    assert pipeline.holders == ((0, 1, 2), (3,))
    assert pipeline.update_sizes == ((3.0,) * 4, (1.0,) * 12)
    for wrong, complaint in (("3-x", "no numbers"), ("2-1", "for 3 devices")):
        with pytest.raises(PipelineError, match=complaint):
            made(f'pipedream(replicas="{wrong}")', 4, 12)
    with pytest.raises(PipelineError, match="divides"):
        made('pipedream(replicas="3-1")', 4, 10)


@pytest.mark.technique("ooo_backprop_pp", check=1)
@pytest.mark.parametrize(("tf", "o", "w"), [(1, 1, 1), (2, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 5)])
def test_gradients_of_inputs_first_never_takes_longer(tf: int, o: int, w: int) -> None:
    for p in range(2, 9):
        for m in (1, 2, 3, 5, 8, 13, 16):
            costs = StageCosts((tf,) * p, (o + w,) * p, (w,) * p)
            pipeline = made("ooo_backprop_pp", p, m)
            split = timeline(pipeline, costs).seconds
            assert max(pipeline.peak_in_flight) <= p
            if m <= p:  # all gradients of inputs come before any of weights
                for order in pipeline.orders:
                    kinds = [task.op for task in order]
                    assert kinds.index(Op.WEIGHT) > max(i for i, op in enumerate(kinds) if op is Op.INPUT)
            whole = timeline(made("gpipe", p, m), costs).seconds
            assert split <= whole
            if m == 1:
                assert split == whole - (p - 1) * w
            if tf == o == w and m >= p:
                assert split == m * (tf + o + w) + (p - 1) * (tf + o)
                best = timeline(made("zero_bubble", p, m), costs).seconds
                assert best == m * (tf + o + w) + (p - 1) * (tf + o - w)  # Qi et al., of ZB-H1
                assert max(made("zero_bubble", p, m).peak_in_flight) == p


@pytest.mark.technique("ooo_backprop_pp", check=3)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_modulo_allocation_sends_at_every_border_of_groups(groups: int) -> None:
    p, m = 3, 4
    pipeline = made(f"ooo_backprop_pp(groups={groups})", p, m)
    assert all(device == stage % p for (stage, _), device in pipeline.device_of.items())
    found = timeline(pipeline, StageCosts.equal(p * groups, 1.0, 2.0, activation_bytes=10.0))
    assert sum(found.sent_bytes) == 2 * 10 * (p * groups - 1) * m


@pytest.mark.technique("varuna", check=2)
@given(st.integers(2, 6), st.integers(2, 10), st.randoms(use_true_random=False))
def test_departing_from_the_list_is_never_slower_under_jitter(p: int, m: int, draw: object) -> None:
    delays: dict[Task, float] = {}

    def delay(task: Task) -> float:
        return delays.setdefault(task, draw.choice([0.0, 0.0, 0.3, 1.0, 3.0]))  # type: ignore[attr-defined]

    costs = StageCosts.equal(p, 1.0, 2.0)
    strict = timeline(made("varuna", p, m), costs, delay=delay).seconds
    assert timeline(made("varuna", p, m), costs, choose=opportunistic, delay=delay).seconds <= strict + 1e-9


@pytest.mark.technique("varuna", check=2)
def test_varunas_order_beats_gpipes_under_jitter() -> None:
    for p, m in ((4, 8), (6, 12)):
        ours = strict = gpipes = 0.0
        for seed in range(20):
            draw, delays = random.Random(seed), dict[Task, float]()

            def delay(task: Task, draw: random.Random = draw, delays: dict[Task, float] = delays) -> float:
                return delays.setdefault(task, draw.choice([0.0, 0.0, 0.3, 1.0, 3.0]))

            costs = StageCosts.equal(p, 1.0, 2.0)
            ours += timeline(made("varuna", p, m), costs, choose=opportunistic, delay=delay).seconds
            strict += timeline(made("varuna", p, m), costs, delay=delay).seconds
            gpipes += timeline(made("gpipe(recompute=true)", p, m), costs, delay=delay).seconds
        assert ours < strict and ours < gpipes


def test_varunas_rules() -> None:
    pipeline = made("varuna", 4, 6)
    assert not any(task.op is Op.RECOMPUTE for task in pipeline.orders[3])
    for order in pipeline.orders[:3]:
        waiting = 0
        for task in order:
            waiting += (task.op is Op.RECOMPUTE) - (task.op is Op.BACKWARD)
            assert waiting in (0, 1)


@pytest.mark.technique("autopipe", check=1)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 16), (6, 7)])
def test_slicing_halves_the_start_up(p: int, m: int) -> None:
    costs = StageCosts.equal(p, 1.0, 2.0, activation_bytes=1.0)
    network = Network.flat(p, 8e15, latency_seconds=0.0)

    def start(pipeline: Pipeline) -> float:
        return timeline(pipeline, costs, network).bars[-1][0].begin

    assert start(made("one_f_one_b", p, m)) == pytest.approx(p - 1)
    assert start(made("autopipe", p, m)) == pytest.approx((p - 1) / 2)
    cut = slices(StageCosts.equal(p, 1.0, 2.0), m)
    best = timeline(sliced(p, m, cut), costs).seconds
    assert 0 < cut <= p and best < timeline(made("one_f_one_b", p, m), costs).seconds
    assert all(timeline(sliced(p, m, count), costs).seconds > best for count in range(cut))


def test_messages_share_a_network() -> None:
    """Two devices with one link of 1 MB/s: activations follow each other, and gradients go the other way meanwhile."""
    costs = StageCosts.equal(2, 0.1, 0.1, activation_bytes=1e6)
    network = Network.flat(2, 8e6, latency_seconds=0.0)
    for m in (1, 2, 5):
        found = timeline(made("gpipe", 2, m), costs, network)
        assert found.seconds == pytest.approx(2 * m + 0.4)
        assert found.sent_bytes == (m * 1e6, m * 1e6)
