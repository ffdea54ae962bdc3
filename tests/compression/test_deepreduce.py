"""DeepReduce: codes of places that lose nothing, Bloom filters and their policies, curves of values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from laconic.compression.codes import bloom, curve, elias, run_lengths
from laconic.compression.deepreduce import DeepReduce, DeepReduced
from laconic.compression.selector import Selected
from laconic.compression.topk import TopK, largest
from laconic.errors import StrategyError
from laconic.runtime.meeting import Meeting
from laconic.strategy import Strategy
from laconic.testing.in_memory import meet
from laconic.values.tensor_spec import TensorSpec

AT = Meeting(0, 1, 0, "x")


def normal(numel: int, seed: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def made(ratio: float = 0.05, **knobs: Any) -> DeepReduced:
    return DeepReduced(Selected(TopK(ratio)), DeepReduce(**knobs))


@pytest.mark.technique("deepreduce", check=1)
@pytest.mark.parametrize("index", ["auto", "packed", "plain", "bitmap", "golomb", "runs"])
@pytest.mark.parametrize("values", ["coded", "deflate"])
def test_lossless_codes_give_back_exactly_what_was_selected(index: str, values: str) -> None:
    for numel, ratio in [(1, 1.0), (7, 0.01), (1000, 0.05), (1001, 1.0), (5000, 0.3)]:
        x = normal(numel, numel)
        x[: numel // 2] *= 3  # runs of neighbours too
        codec = made(ratio, index=index, values=values)
        expected = torch.zeros(numel)
        places = largest(x, codec.inner.selector.count(numel))
        expected[places] = x[places]
        payload = codec.encode(x, AT)
        assert torch.equal(codec.decode(payload, x.shape, AT), expected)
        assert len(payload) <= codec.payload_bytes(TensorSpec("x", (numel,), torch.float32), 1)


@pytest.mark.technique("deepreduce", check=1)
@pytest.mark.parametrize("places", [[], [0], [9], [0, 1, 2, 9], list(range(10)), [1, 3, 5, 7], [4, 5, 6]])
def test_runs_of_any_places_are_read_back(places: list[int]) -> None:
    written = run_lengths.write(torch.tensor(places, dtype=torch.int64))
    found, rest = run_lengths.read(torch.cat([written, torch.tensor([1, 2, 3], dtype=torch.uint8)]))
    assert found.tolist() == places and rest.tolist() == [1, 2, 3]
    assert len(written) <= run_lengths.most(len(places), 10)


@pytest.mark.technique("deepreduce", check=1)
def test_the_shortest_code_is_chosen() -> None:
    numel = 4000
    sizes = {}
    for kind, ratio in (("sparse", 0.01), ("half", 0.5), ("all", 1.0)):
        x = normal(numel, 3)
        each = {i: len(made(ratio, index=i).encode(x, AT)) for i in ("packed", "plain", "bitmap", "golomb", "runs")}
        assert len(made(ratio).encode(x, AT)) == min(each.values()) + 1
        sizes[kind] = min(each, key=lambda i, each=each: each[i])  # type: ignore[misc]
    assert sizes == {"sparse": "golomb", "half": "bitmap", "all": "runs"}


@pytest.mark.technique("deepreduce", check=1)
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1])
def test_of_a_filter_with_policy_p0_every_value_arrives(rate: float) -> None:
    """With the values of others that pass, which are the tensor's own; and exactly m + 32·|P| bits beside the head."""
    passed, others = 0, 0
    for seed in range(6):
        numel, x = 100_000, normal(100_000, seed)
        codec = made(0.01, index="bloom", rate=rate)
        payload = codec.encode(x, AT)
        found, places = codec.decode(payload, x.shape, AT), largest(x, 1000)
        assert torch.equal(found[places], x[places])
        sent = found != 0
        assert torch.equal(found[sent], x[sent])
        m, _ = bloom.size(1000, rate)
        assert len(payload) == 4 + -(-m // 8) + 4 * int(sent.sum())
        assert len(payload) <= codec.payload_bytes(TensorSpec("x", (numel,), torch.float32), 1)
        passed, others = passed + int(sent.sum()) - 1000, others + numel - 1000
    assert passed / others == pytest.approx(rate, rel=0.2)


@pytest.mark.technique("deepreduce", check=2)
def test_a_place_takes_14_4_bits_at_a_rate_of_a_thousandth() -> None:
    numel = 100_000
    assert bloom.size(1000, 0.001)[0] / 1000 == pytest.approx(14.4, abs=0.05)
    x = normal(numel, 1)
    sizes = dict.fromkeys(("bloom", "plain"), 4 + 4 * 1000)
    for index in sizes:
        codec = made(0.01, index=index, rate=0.001, policy="p1")
        sizes[index] = len(codec.encode(x, AT)) - sizes[index]
    assert 8 * sizes["bloom"] / 1000 == pytest.approx(14.4, abs=0.05) and 8 * sizes["plain"] / 1000 == 32


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_policies_send_as_many_values_as_were_selected_and_p2_the_right_ones(seed: int) -> None:
    """Of a filter that a fifth of the others pass: a draw picks few true ones, the fewest conflicts pick more."""
    numel, x, right = 5000, normal(5000, seed), {}
    places = set(largest(x, 250).tolist())
    for policy in ("p1", "p2"):
        codec = made(0.05, index="bloom", rate=0.2, policy=policy)
        found = codec.decode(codec.encode(x, AT), x.shape, AT)
        sent = found.nonzero().view(-1)
        assert len(sent) == 250 and torch.equal(found[sent], x[sent])
        right[policy] = len(places & set(sent.tolist()))
    m, h = bloom.size(250, 0.2)
    found = bloom.passing(bloom.write(torch.tensor(sorted(places)), m, h), m, h, numel)
    expected = 250 * 250 / len(found)
    assert abs(right["p1"] - expected) < 0.25 * expected and right["p2"] > 1.1 * expected


def test_a_place_alone_on_its_bit_was_surely_selected() -> None:
    places = torch.randperm(3000, generator=torch.Generator().manual_seed(5))[:100].sort().values
    m, h = bloom.size(100, 0.05)
    found = bloom.passing(bloom.write(places, m, h), m, h, 3000)
    sure = found[bloom.conflicts(found, m, h) == 1]
    assert len(sure) and bool(torch.isin(sure, places).all()) and bool(torch.isin(places, found).all())


@pytest.mark.technique("deepreduce", check=3)
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "layer"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_curve_of_eight_segments_is_within_five_percent(kind: str, seed: int) -> None:
    """Of the largest hundredth of noise, of cubed noise, and of a gradient of a trained layer with its many scales."""
    x = normal(200_000, seed)
    if kind == "heavy tails":
        x = x**3
    if kind == "layer":
        torch.manual_seed(seed)
        layers = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10))
        inputs = torch.randn(64, 300)
        torch.nn.functional.cross_entropy(layers(inputs), inputs[:, :10].argmax(1)).backward()
        x = layers[0].weight.grad.view(-1)  # type: ignore[union-attr, operator]
    values = x[largest(x, len(x) // 100)].sort(descending=True).values
    written = curve.write(values)
    assert float((curve.read(written) - values).norm() / values.norm()) < 0.05
    assert len(written) == curve.BYTES == 4 + 8 * (4 + 24) and 5 * len(written) <= 4 * len(values)


@pytest.mark.technique("deepreduce", check=3)
@pytest.mark.parametrize("index", ["packed", "plain", "auto", "bitmap", "bloom"])
def test_fitted_values_return_to_their_places(index: str) -> None:
    """With places in the order of values, or with a map of log2 r bits for each; also where there are too few."""
    for numel, ratio in [(50_000, 0.02), (500, 0.02)]:
        x = normal(numel, 9)
        raw, fitted = (made(ratio, index=index, values=values) for values in ("coded", "curve"))
        before, after = (codec.encode(x, AT) for codec in (raw, fitted))
        expected, found = (c.decode(p, x.shape, AT) for c, p in ((raw, before), (fitted, after)))
        assert torch.equal(found != 0, expected != 0)
        assert float((found - expected).norm() / expected.norm()) < 0.05
        if numel == 500:
            assert torch.equal(found, expected)
            continue
        sent = int((expected != 0).sum())
        mapped = 0 if index in ("packed", "plain") else -(-sent * (sent - 1).bit_length() // 8)
        assert len(before) - len(after) == 4 * sent - 1 - curve.BYTES - mapped


def test_values_that_are_not_finite_are_sent_as_they_are() -> None:
    x = normal(20_000, 2)
    x[77] = torch.inf
    codec = made(0.01, values="curve")
    assert codec.decode(codec.encode(x, AT), x.shape, AT)[77] == torch.inf


@pytest.mark.parametrize("word", ["deepreduce", "deepreduce(bloom)", "deepreduce(bloom, p2, values=curve)"])
def test_what_was_sent_and_the_memory_are_all_that_came_in(word: str) -> None:
    compressor = Strategy.parse(f"bsp / topk(0.05)+{word}+ef").compressor  # type: ignore[union-attr]
    inputs, states = [normal(3000, seed) for seed in (0, 1)], None
    applied = torch.zeros(3000)
    for step in range(3):
        outcomes = meet(compressor, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        applied += outcomes[0].result
        assert torch.equal(outcomes[0].result, outcomes[1].result)
    kept = torch.stack([state["error"] for state in states or []]).mean(0)
    torch.testing.assert_close(applied + kept, 3 * torch.stack(inputs).mean(0), rtol=0, atol=1e-4)


def test_it_stands_behind_a_selector_and_its_values() -> None:
    Strategy.parse("bsp / topk(0.01)+qsgd(4)+deepreduce(bloom)+ef")
    for text in ("int8+deepreduce", "topk(0.01)+qsgd(4)+deepreduce(values=curve)"):
        with pytest.raises(StrategyError, match=r"behind a selector; write topk\(0.01\)\+deepreduce\(bloom\)"):
            Strategy.parse(f"bsp / {text}")


@pytest.mark.parametrize(("count", "numel"), [(1, 1), (2, 9), (6, 30), (7, 30), (62, 1000)])
def test_the_promise_counts_a_gap_and_a_length_for_each_place(count: int, numel: int) -> None:
    """A gap is at most the number of values, and written as one more; a length at most the number of places."""
    longest = elias.length(numel + 1) + elias.length(count + 1)
    assert run_lengths.most(count, numel) == 8 + math.ceil(count * longest / 8)


def test_the_hashes_of_a_filter_differ_whatever_its_length() -> None:
    """Also of a length that is a power of two, for which only the low bits of a hash count."""
    for m in (1 << 12, 4099):
        rows = bloom.hashes(torch.arange(2000), m, 3)
        assert all((rows[a] == rows[b]).float().mean() < 0.01 for a, b in ((0, 1), (0, 2), (1, 2)))
