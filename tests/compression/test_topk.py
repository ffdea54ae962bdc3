"""Sparsification: which coordinates are sent, what that costs, what the authors' programs say, and training at 1 %."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import laconic
from laconic.architecture.allreduce import AllReduce
from laconic.compression.topk import GlobalTopK, MSTopK, RandK, ScaleCom, TopK, largest
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete, run_exchanges
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Kind
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.data import fixture
from tests.sync import digits
from tests.sync.test_large_batch import Standardised

MEET = Meeting(0, 1, 0, "x")
FLOATS = st.floats(-1e6, 1e6, width=32)
VECTORS = st.lists(FLOATS, min_size=1, max_size=300).map(torch.tensor)
RATIOS = st.one_of(st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0]), st.floats(0.001, 1.0))
SEEDS = st.integers(0, 10_000)
FORMS = [(True, False), (True, True), (False, False), (False, True)]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def energy(x: Tensor) -> float:
    return float(x.double().square().sum())


def dense(places: Tensor, values: Tensor, numel: int) -> Tensor:
    return torch.zeros(numel).index_put_((places.long(),), values)


@cache
def accuracy(strategy: str, steps: int) -> float:
    """In points, of the mean of two seeds, at eight times a batch of 16 and eight times its rate of 0.05."""
    runs = [digits.trained(strategy, steps, 32, digits.sgd(0.4), seed=seed, build=Standardised) for seed in range(2)]
    return sum(run.accuracy for run in runs) / 2


# ---------------------------------------------------------------------------------------------- topk


@pytest.mark.evidence("topk", recording="topk.npz")
def test_topk_sends_and_remembers_what_graces_does() -> None:
    kept = {key: torch.from_numpy(value) for key, value in fixture("topk.npz").items() if value.ndim}
    ratio, numel = float(fixture("topk.npz")["ratio"]), kept["grad"].shape[1]
    selector, made = TopK(ratio), compressor(f"topk({ratio})+ef")
    error = torch.zeros(numel)
    for grad, places, values, residual in zip(
        kept["grad"], kept["indices"], kept["values"], kept["residual"], strict=True
    ):
        assert torch.equal(selector.choose(grad + error, MEET), places.long())
        (outcome,) = meet(made, [grad], [{"error": error}])
        error = outcome.state["error"]
        torch.testing.assert_close(outcome.result, dense(places, values, numel), rtol=1e-5, atol=0)
        torch.testing.assert_close(error, residual, rtol=1e-5, atol=1e-7)


@pytest.mark.long
@given(VECTORS, RATIOS)
@settings(max_examples=150, deadline=None)
@pytest.mark.technique("topk", check=1)
def test_what_topk_leaves_out_is_at_most_its_share(x: Tensor, ratio: float) -> None:
    made = TopK(ratio)
    delta = made.count(x.numel()) / x.numel()
    (outcome,) = meet(made, [x])
    assert energy(x - outcome.result) <= (1 - delta) * energy(x) * (1 + 1e-9)
    assert made.contraction(spec_of(x)) == delta


@given(st.integers(1, 300), RATIOS, st.floats(1e-10, 1e10), SEEDS)
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("topk", check=1)
def test_where_all_magnitudes_are_equal_it_is_exactly_its_share(
    numel: int, ratio: float, value: float, seed: int
) -> None:
    x, made = value * normal(seed, numel).sign(), TopK(ratio)
    (outcome,) = meet(made, [x])
    k = made.count(numel)
    assert energy(x - outcome.result) == pytest.approx((1 - k / numel) * energy(x), rel=1e-9)
    assert torch.equal(outcome.result.nonzero().view(-1), torch.arange(k)), "among equal ones the first"


@pytest.mark.technique("topk", check=1)
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "zero"])
@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.7])
def test_topk_sends_the_largest_and_its_memory_keeps_the_rest(kind: str, ratio: float) -> None:
    """Of unequal workers, step by step: at most 1 - k/n of the energy stays, and nothing of what came in is lost."""
    made, k = compressor(f"topk({ratio})+ef"), math.ceil(480 * ratio)
    states = [made.init(spec_of(tensor(kind))) for _ in range(3)]
    came = sent = torch.zeros(24, 20, dtype=torch.float64)
    for step in range(4):
        inputs = [(1 + rank) * tensor(kind, seed=10 * step + rank) for rank in range(3)]
        wanted = [x + state["error"] for x, state in zip(inputs, states, strict=True)]
        outcomes = meet(made, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        for v, state in zip(wanted, states, strict=True):
            least = v.abs().view(-1).sort(descending=True).values[k - 1]
            assert torch.equal(state["error"], torch.where(v.abs() < least, v, 0.0))
            assert energy(state["error"]) <= (1 - k / 480) * energy(v)
        came, sent = came + torch.stack(inputs).double().mean(dim=0), sent + outcomes[0].result
        memory = torch.stack([state["error"] for state in states]).double().mean(dim=0)
        torch.testing.assert_close(sent + memory, came, rtol=0, atol=1e-6 * max(1.0, float(came.abs().max())))
    assert TopK(ratio).contraction(spec_of(came)) == k / 480


@pytest.mark.long
@given(st.integers(1, 200), RATIOS, SEEDS)
@settings(max_examples=40, deadline=None)
@pytest.mark.technique("topk", check=1)
def test_what_topk_sent_and_remembers_is_what_came_in(numel: int, ratio: float, seed: int) -> None:
    """In the mean over three workers; a coordinate is sent as it is, so that only sums round."""
    made, workers = compressor(f"topk({ratio})+ef"), 3
    states = [made.init(TensorSpec("x", (numel,), torch.float32)) for _ in range(workers)]
    came = sent = torch.zeros(numel, dtype=torch.float64)
    for step in range(12):
        inputs = [normal(seed + 10 * step + rank, numel) for rank in range(workers)]
        outcomes = meet(made, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        came, sent = came + torch.stack(inputs).double().mean(dim=0), sent + outcomes[0].result
        memory = torch.stack([state["error"] for state in states]).double().mean(dim=0)
        torch.testing.assert_close(sent + memory, came, rtol=0, atol=1e-5)


@pytest.mark.long
@given(VECTORS, RATIOS)
@settings(max_examples=100, deadline=None)
@pytest.mark.technique("topk", check=2)
def test_with_plain_places_the_payload_is_eight_bytes_a_coordinate(x: Tensor, ratio: float) -> None:
    made = TopK(ratio, index="plain")
    k = max(1, math.ceil(ratio * x.numel() - 1e-9))
    assert len(made.encode(x, MEET)) == 8 * k == made.payload_bytes(spec_of(x), 4)


@pytest.mark.long
@given(VECTORS, RATIOS, st.sampled_from(["plain", "packed", "bitmap"]), st.sampled_from(["exact", "sampled"]))
@settings(max_examples=100, deadline=None)
def test_every_way_to_write_places_sends_the_same(x: Tensor, ratio: float, index: str, threshold: str) -> None:
    made = TopK(ratio, index=index, threshold=threshold)
    places = made.choose(x, MEET)
    payload = made.encode(x, MEET)
    assert torch.equal(made.decode(payload, x.shape, MEET), dense(places, x[places], x.numel()))
    k, n = len(places), x.numel()
    width = {"plain": 32 * k, "packed": k * max(1, (n - 1).bit_length()), "bitmap": n}[index]
    if made.padded:
        assert len(payload) == made.payload_bytes(spec_of(x), 1) and not made.ragged
    else:
        assert len(payload) == 4 * made.varies + math.ceil(width / 8) + 4 * k <= made.payload_bytes(spec_of(x), 1)


@pytest.mark.technique("topk", check=3)
@pytest.mark.long
def test_one_percent_trains_as_well_with_a_memory_and_not_without() -> None:
    words = "bsp", "topk(0.01, index=plain)+ef", "topk(0.01, index=plain)"
    bsp, remembering, forgetting = (accuracy(strategy, 100) for strategy in words)
    assert bsp > 95
    assert remembering >= bsp - 1
    assert forgetting < bsp - 2


# ---------------------------------------------------------------------------------------------- topk, sampled


@pytest.mark.parametrize("kind", ["normal", "heavy"])
@pytest.mark.parametrize(("numel", "ratio"), [(1_000_000, 0.01), (300_000, 0.001), (50_000, 0.1)])
def test_a_sampled_threshold_passes_about_k_and_only_the_largest(kind: str, numel: int, ratio: float) -> None:
    made = TopK(ratio, threshold="sampled")
    x = tensor(kind, (numel,))
    for step in range(3):
        places = made.choose(x, Meeting(0, 1, step, "x"))
        k = made.count(numel)
        passing = (x.abs() >= made.sampled(x, Meeting(0, 1, step, "x"))).nonzero().view(-1)
        assert 0.6 * k <= len(passing) <= 1.3 * k
        assert torch.equal(passing, largest(x, len(passing)))
        assert torch.equal(places, passing[:k])


def test_a_sample_is_drawn_anew_in_every_step_and_on_every_worker() -> None:
    made, x = TopK(threshold="sampled"), tensor("normal", (500_000,))
    found = {made.sampled(x, Meeting(rank, 2, step, "x")) for rank in range(2) for step in range(3)}
    assert len(found) == 6
    assert made.sampled(x, Meeting(1, 2, 2, "x")) in found


@pytest.mark.long
@given(VECTORS, RATIOS)
@settings(max_examples=80, deadline=None)
def test_of_a_small_tensor_the_sample_is_all(x: Tensor, ratio: float) -> None:
    """So that the k largest are sent, the first where they are equal; no zeros."""
    made = TopK(ratio, threshold="sampled")
    k = made.count(x.numel())
    least = float(x.abs().sort(descending=True).values[k - 1])
    expected = ((x.abs() >= least) & (x.abs() >= torch.finfo(torch.float32).tiny)).nonzero().view(-1)
    assert torch.equal(made.choose(x, MEET), expected[:k])


@pytest.mark.parametrize("numel", [40, 20_000])
def test_a_sampled_threshold_at_the_edges(numel: int) -> None:
    """Of nothing nothing is sent, in a message as long as any; of equal values the first k; what is not finite is
    seen."""
    made = TopK(0.1, threshold="sampled")
    empty = made.encode(torch.zeros(numel), MEET)
    assert not empty.any() and len(empty) == made.payload_bytes(TensorSpec("x", (numel,), torch.float32), 4)
    assert torch.equal(made.choose(torch.full((numel,), -2.0), MEET), torch.arange(numel // 10))
    for poison in (math.inf, -math.inf, math.nan):
        x = tensor("normal", (numel,))
        x[7] = poison
        assert 7 in made.choose(x, MEET).tolist()


@pytest.mark.parametrize("index", ["packed", "plain", "bitmap"])
@pytest.mark.parametrize("numel", [40, 20_000])
def test_what_passes_a_sampled_threshold_and_does_not_fit_waits_in_the_memory(numel: int, index: str) -> None:
    """Bit by bit, and all of it is sent in the steps that follow, if nothing new comes."""
    made, k = compressor(f"topk(0.1, threshold=sampled, index={index})+ef"), numel // 10
    x = torch.full((numel,), -2.0)
    outcomes = meet(made, [x])
    for step in range(1, 10):
        rest = torch.where(torch.arange(numel) < step * k, 0.0, x)
        assert torch.equal(outcomes[0].state["error"], rest)
        assert torch.equal(
            outcomes[0].result, torch.where(rest == 0, x, 0.0).index_fill(0, torch.arange(step * k - k), 0.0)
        )
        outcomes = meet(made, [torch.zeros(numel)], [outcome.state for outcome in outcomes], step)


def test_only_codes_whose_length_is_known_are_padded() -> None:
    for text in ("topk(threshold=sampled)", "topk(threshold=sampled, index=plain)", "topk"):
        assert not compressor(text).ragged
    for text in ("topk(threshold=sampled, index=bitmap)", "topk(threshold=sampled)+fp16", "hard_threshold"):
        assert compressor(text).ragged


def test_values_chosen_by_a_sample_are_written_in_any_code() -> None:
    made, x = compressor("topk(0.1, threshold=sampled)+fp16+ef"), tensor("heavy")
    outcomes = meet(made, [x, -2 * x])
    received = x.half().float() - (2 * x).half().float()
    sent = outcomes[0].result != 0
    torch.testing.assert_close(2 * outcomes[0].result[sent], received[sent])
    assert 48 <= int(sent.sum()) <= 60


# ---------------------------------------------------------------------------------------------- randk


@pytest.mark.long
@pytest.mark.technique("randk", check=1)
@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_both_forms_have_the_variance_of_their_identity(kind: str, block: bool) -> None:
    """The same draws serve both: what is left out, and (n/k - 1)² times what is sent."""
    n, draws = 60, 10_000
    x = tensor(kind, (n,))
    x = x.clamp(-30, 30)  # a single coordinate that is everything would need millions of draws
    scaled, bare = RandK(0.25, True, block), RandK(0.25, False, block)
    k = scaled.count(n)
    sent = torch.zeros(draws, dtype=torch.float64)
    for step in range(draws):
        sent[step] = x[bare.choose(n, Meeting(0, 1, step, "x"), x.device)].double().square().sum()
    whole = energy(x)
    left = float((whole - sent).mean())
    assert left == pytest.approx((1 - k / n) * whole, rel=0.02)
    assert left + (n / k - 1) ** 2 * float(sent.mean()) == pytest.approx((n / k - 1) * whole, rel=0.02)
    for made, step in ((scaled, 0), (bare, 1)):  # that these are the errors of what is decoded
        (outcome,) = meet(made, [x], step=step)
        missing, over = whole - float(sent[step]), (n / k - 1) ** 2 * float(sent[step]) if made is scaled else 0.0
        assert energy(outcome.result - x) == pytest.approx(missing + over, rel=1e-5)
    spec = spec_of(x)
    assert scaled.variance(spec) == n / k - 1 and bare.contraction(spec) == k / n


@pytest.mark.long
@given(
    st.integers(1, 300),
    RATIOS,
    st.integers(1, 5),
    st.sampled_from(FORMS),
    SEEDS,
)
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("randk", check=2)
def test_reduced_values_are_the_mean_of_what_all_say(
    numel: int, ratio: float, size: int, form: tuple[bool, bool], seed: int
) -> None:
    """All draw the same places, so that k values are all that is sent."""
    made = RandK(ratio, *form)
    inputs = [normal(seed + rank, numel) for rank in range(size)]
    handed: list[list[tuple[str, Tensor]]] = []
    outcomes = meet(made, inputs, step=seed, payloads=handed)
    k = max(1, math.ceil(ratio * numel - 1e-9))
    sent = torch.stack([outcome.sent for outcome in outcomes if outcome.sent is not None])
    scale = numel / k if made.scaled else 1.0
    places = outcomes[0].result.nonzero().view(-1)
    assert places.numel() == k
    torch.testing.assert_close(sent, torch.stack([dense(places, scale * x[places], numel) for x in inputs]))
    for outcome, messages in zip(outcomes, handed, strict=True):
        torch.testing.assert_close(outcome.result, sent.mean(dim=0))
        assert [(kind, part.nbytes) for kind, part in messages] == [("Reduce", 4 * k)]
    assert made.payload_bytes(spec_of(inputs[0]), size) == 4 * k


# ---------------------------------------------------------------------------------------------- mem_sgd


@pytest.mark.long
@pytest.mark.technique("mem_sgd", check=1)
@pytest.mark.parametrize("rate", [0.25, 0.3])
def test_mem_sgd_that_sends_everything_is_sgd(rate: float) -> None:
    """To the bit where the rate divides exactly, as it is multiplied in and divided out."""
    runs = [
        digits.trained(strategy, 20, 8, digits.sgd(rate)).parameters
        for strategy in ("bsp", "topk(1.0)+error_feedback(inside=true)")
    ]
    assert torch.equal(*runs) if rate == 0.25 else torch.allclose(*runs, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.technique("mem_sgd", check=1)
def test_parameters_less_memory_follow_sgd_on_the_same_gradients() -> None:
    """In training on virtual workers, with a rate that changes in every step: what is remembered are changes of
    parameters, so that a new rate does not touch old ones. (Forgetting that would show: see the last line.)"""
    rates, workers, numel = [0.5 / (1 + step) for step in range(12)], 3, 200

    def gradient(rank: int, step: int) -> Tensor:
        return normal(100 * step + rank, numel)

    def body() -> tuple[list[Tensor], list[Tensor]]:
        model: nn.Module = nn.Linear(numel, 1, bias=False)
        nn.init.zeros_(model.weight)  # type: ignore[arg-type]
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=rates[0])
        model, optimizer = laconic.distribute(model, optimizer, "mem_sgd")
        memory = optimizer.session.partitions[0].tiers[0].memory  # type: ignore[attr-defined]
        points, kept = [], []
        for step, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"] = rate
            model(gradient(laconic.rank(), step)).backward()
            optimizer.step()
            optimizer.zero_grad()
            points.append(next(model.parameters()).detach().view(-1).clone())
            (state,) = memory.values()
            kept.append(state["error"].view(-1).clone())
        return points, kept

    results = laconic.simulate(body, workers).results
    plain, constant = torch.zeros(2, numel)
    for step, rate in enumerate(rates):
        mean = torch.stack([gradient(rank, step) for rank in range(workers)]).mean(dim=0)
        plain, constant = plain - rate * mean, constant - rates[0] * mean
        memory = torch.stack([kept[step] for _, kept in results]).mean(dim=0)
        for points, _ in results:
            torch.testing.assert_close(points[step] - memory, plain, rtol=0, atol=1e-5)
    assert float(memory.norm()) > 0.1 and float((plain - constant).norm()) > 0.1


def suboptimality(text: str | None, seed: int, steps: int, n: int = 100, mu: float = 0.2) -> tuple[float, float]:
    """Of regularised logistic regression on two workers, one sample each a step, and the condition number: the paper's
    rates 8/(mu·(a + t)) and average of iterates with weights (a + t)², where a is of the order of n/k."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(1000, n, generator=draw).double()
    y = torch.sign(x @ torch.randn(n, generator=draw).double() * 3 / n**0.5 + torch.randn(1000, generator=draw))

    def value(w: Tensor) -> float:
        return float(nn.functional.softplus(-y * (x @ w)).mean() + mu / 2 * w @ w)

    def gradient(w: Tensor, rows: Tensor | slice) -> Tensor:
        pull = y[rows] * torch.sigmoid(-y[rows] * (x[rows] @ w))
        return mu * w - (x[rows] * pull[:, None]).mean(dim=0)

    best = torch.zeros(n).double()
    for _ in range(20):
        s = torch.sigmoid(-y * (x @ best))
        hessian = (x * (s * (1 - s))[:, None]).T @ x / len(x) + mu * torch.eye(n)
        best -= torch.linalg.solve(hessian, gradient(best, slice(None)))
    made = None if text is None else compressor(text)
    states = None if made is None else [made.init(TensorSpec("x", (n,), torch.float32)) for _ in range(2)]
    w, shift = torch.zeros(n).double(), 7 * n
    mean, total = torch.zeros(n).double(), 0
    for step in range(steps):
        rate = 8 / (mu * (shift + step))
        grads = [gradient(w, torch.randint(1000, (1,), generator=draw)).float() for _ in range(2)]
        if made is None:
            w = w - rate * torch.stack(grads).mean(dim=0)
        else:
            outcomes = meet(made, grads, states, step, rate)
            states = [outcome.state for outcome in outcomes]
            w = w - rate * outcomes[0].result
        mean, total = mean + (shift + step) ** 2 * w, total + (shift + step) ** 2
    return value(mean / total) - value(best), (float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1]) / 4 + mu) / mu


@pytest.mark.long
@pytest.mark.technique("mem_sgd", check=2)
def test_one_coordinate_in_a_hundred_is_as_near_the_optimum() -> None:
    steps = 2000
    (sgd, condition), (sparse, _) = suboptimality(None, 0, steps), suboptimality("mem_sgd", 0, steps)
    assert steps > 6 * 100 * condition, "well past (n/k) times the condition number"
    assert 0 < sparse <= 2 * sgd


# ---------------------------------------------------------------------------------------------- gtopk


@pytest.mark.evidence("gtopk", recording="gtopk.npz")
@pytest.mark.parametrize("size", [2, 4, 8])
def test_gtopk_sends_and_puts_back_what_the_authors_program_does(size: int) -> None:
    kept = {key: torch.from_numpy(value) for key, value in fixture("gtopk.npz").items() if key.startswith(f"P{size}_")}
    kept = {key.split("_", 1)[1]: value for key, value in kept.items()}
    numel, k = kept["grad"].shape[2], kept["final_indices"].shape[1]
    made = compressor(f"gtopk({k / numel})+ef")
    states = [made.init(TensorSpec("x", (numel,), torch.float32)) for _ in range(size)]
    for step in range(kept["grad"].shape[1]):
        grads = kept["grad"][:, step]
        for rank, state in enumerate(states):
            assert torch.equal(largest(grads[rank] + state["error"], k), kept["local_indices"][rank, step].long())
        outcomes = meet(made, list(grads), states, step)
        states = [outcome.state for outcome in outcomes]
        final = dense(kept["final_indices"][step], kept["final_values"][step], numel)
        for outcome in outcomes:
            torch.testing.assert_close(size * outcome.result, final, rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(outcome.result, kept["mean"][step], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(
            torch.stack([state["error"] for state in states]), kept["residual"][:, step], rtol=1e-5, atol=1e-6
        )


@pytest.mark.long
@given(st.integers(2, 200), st.sampled_from([0.01, 0.1, 0.5]), SEEDS, st.sampled_from(["normal", "heavy", "sparse"]))
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("gtopk", check=1)
def test_of_two_it_is_the_largest_of_the_sum_of_their_largest(numel: int, ratio: float, seed: int, kind: str) -> None:
    made, inputs = GlobalTopK(ratio), [tensor(kind, (numel,), seed + rank) for rank in range(2)]
    k = made.count(numel)
    total = sum(dense(p := largest(x, k), x[p], numel) for x in inputs)
    assert isinstance(total, Tensor)
    expected = dense(p := largest(total, k), total[p], numel) / 2
    for outcome in meet(made, inputs):
        assert torch.equal(outcome.result, expected)


@pytest.mark.technique("gtopk", check=2)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 13, 16])
def test_the_result_has_k_coordinates_the_same_everywhere(size: int) -> None:
    made = GlobalTopK(0.02)
    for seed in range(5):
        outcomes = meet(made, [normal(100 * seed + rank, 500) for rank in range(size)])
        assert int((outcomes[0].result != 0).sum()) == made.count(500) == 10
        assert all(torch.equal(outcome.result, outcomes[0].result) for outcome in outcomes)


def critical_bytes(text: str, workers: int, numel: int) -> float:
    """Of an exchange on links that carry a byte a second and have no latency: the seconds that it takes."""
    made = compressor(text)

    def body() -> float:
        worker = connect()
        x = normal(worker.rank, numel)
        before = worker.clock_seconds()
        exchange = made.exchange(x, made.init(spec_of(x)), Meeting(worker.rank, worker.size, 0, "x"))
        complete([InFlight(run_exchanges([exchange], lambda request: AllReduce().carry(request, worker.world)))])
        return worker.clock_seconds() - before

    return max(laconic.simulate(body, workers, Network.flat(workers, 8.0)).results)


@pytest.mark.technique("gtopk", check=2)
@pytest.mark.parametrize("workers", [2, 4, 8, 16, 32])
def test_the_critical_path_is_the_tree_up_and_down(workers: int) -> None:
    k = GlobalTopK(0.01).count(1000)
    assert critical_bytes("gtopk(0.01)", workers, 1000) == pytest.approx(2 * math.log2(workers) * 8 * k)


@pytest.mark.long
@pytest.mark.technique("gtopk", check=3)
@pytest.mark.parametrize("workers", [16, 17, 24, 32, 64])
def test_the_critical_path_is_shorter_than_a_gathers(workers: int) -> None:
    """Of which it stays that way, as a gather's grows with the workers and a tree's with their logarithm."""
    k = GlobalTopK(0.01).count(1000)
    gathered = critical_bytes("topk(0.01, index=plain)", workers, 1000)
    assert gathered == pytest.approx((workers - 1) * 8 * k)
    assert critical_bytes("gtopk(0.01)", workers, 1000) < gathered


# ---------------------------------------------------------------------------------------------- scalecom


@pytest.mark.long
@given(st.integers(1, 300), RATIOS, st.sampled_from(["tensor", "chunk"]), st.integers(1, 5), st.integers(0, 9), SEEDS)
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("scalecom", check=1)
def test_the_mean_of_what_is_sent_is_what_is_sent_of_the_mean(
    numel: int, ratio: float, per: str, size: int, step: int, seed: int
) -> None:
    """For the places of the same leader, who is another one in every step."""
    made, inputs = ScaleCom(ratio, per), [normal(seed + rank, numel) for rank in range(size)]
    places = made.choose(inputs[step % size])
    assert places.unique().numel() == made.count(numel)
    mean = torch.stack(inputs).double().mean(dim=0).float()
    for rank, outcome in enumerate(meet(made, inputs, step=step)):
        torch.testing.assert_close(outcome.result, dense(places, mean[places], numel), rtol=1e-5, atol=1e-6)
        assert outcome.sent is not None
        assert torch.equal(outcome.sent, dense(places, inputs[rank][places], numel))


def sent_by_one(workers: int, steps: int, numel: int) -> float:
    """Bytes of a worker in a step, the mean of all: leaders take turns."""

    def body() -> float:
        model: nn.Module = nn.Linear(numel, 1, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "scalecom+ef")
        before = connect().ledger.sent_bytes(Kind.PAYLOAD)
        for step in range(steps):
            model(normal(step, numel)).backward()
            optimizer.step()
        return connect().ledger.sent_bytes(Kind.PAYLOAD) - before

    return sum(laconic.simulate(body, workers).results) / workers / steps


@pytest.mark.technique("scalecom", check=2)
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_worker_sends_the_same_however_many_there_are(workers: int) -> None:
    """k values to reduce, with their 2(P-1)/P, and k places from the leader, that P-1 others are sent in all."""
    k = ScaleCom().count(3000)
    assert sent_by_one(workers, steps=workers, numel=3000) == pytest.approx((workers - 1) / workers * (2 + 1) * 4 * k)


@pytest.mark.technique("scalecom", check=2)
@pytest.mark.parametrize("per", ["tensor", "chunk"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_scalecom_hands_over_the_same_and_loses_nothing(size: int, per: str) -> None:
    """With a memory that follows at once, each worker's messages and memory are what came in."""
    made, numel = compressor(f"scalecom(0.05, per={per})+ef(low_pass=1.0)"), 400
    states = [made.init(TensorSpec("x", (numel,), torch.float32)) for _ in range(size)]
    came, sent = torch.zeros(2, size, numel, dtype=torch.float64)
    for step in range(2 * size + 8):
        inputs = [normal(100 * step + rank, numel) for rank in range(size)]
        handed: list[list[tuple[str, Tensor]]] = []
        outcomes = meet(made, inputs, states, step, payloads=handed)
        states = [outcome.state for outcome in outcomes]
        came += torch.stack(inputs)
        sent += torch.stack([outcome.sent for outcome in outcomes if outcome.sent is not None])
        kept = torch.stack([state["error"] for state in states])
        torch.testing.assert_close(sent + kept, came, rtol=0, atol=1e-5)
        for messages in handed:
            assert [(kind, part.nbytes) for kind, part in messages] == [("Broadcast", 80), ("Reduce", 80)]


def test_a_memory_that_follows_slowly_is_the_papers() -> None:
    """m + beta·(g - what was sent)."""
    made, x, memory = compressor("scalecom(0.1)+ef(low_pass=0.1)"), normal(1, 50), normal(2, 50)
    (outcome,) = meet(made, [x], [{"error": memory.clone()}])
    sent = dense(p := largest(x + memory, 5), (x + memory)[p], 50)
    torch.testing.assert_close(outcome.state["error"], memory + 0.1 * (x - sent))


@pytest.mark.technique("scalecom", check=3)
@pytest.mark.long
def test_scaled_batches_and_rates_train_as_well_with_a_slow_memory() -> None:
    bsp, sparse = accuracy("bsp", 300), accuracy("scalecom+ef(low_pass=0.1)", 300)
    assert bsp > 96
    assert sparse >= bsp - 1


# ---------------------------------------------------------------------------------------------- mstopk

ANY = st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=200).map(torch.tensor)


@pytest.mark.long
@given(ANY, RATIOS, st.integers(1, 40))
@settings(max_examples=150, deadline=None)
@pytest.mark.technique("mstopk", check=1)
def test_bisection_finds_k_distinct_places_of_anything(x: Tensor, ratio: float, rounds: int) -> None:
    made = MSTopK(ratio, rounds=rounds)
    places = made.choose(x, MEET)
    assert places.numel() == made.count(x.numel()) == places.unique().numel()
    assert int(places.min()) >= 0 and int(places.max()) < x.numel()
    assert len(MSTopK(ratio, index="plain", rounds=rounds).encode(x, MEET)) == 8 * places.numel()


@pytest.mark.long
@given(st.integers(1, 3000), RATIOS, st.integers(0, 3), FLOATS, SEEDS)
@settings(max_examples=100, deadline=None)
@pytest.mark.technique("mstopk", check=1)
def test_of_equal_values_and_of_zeros_it_finds_k_too(
    numel: int, ratio: float, others: int, value: float, seed: int
) -> None:
    """A constant vector with up to three other values: mostly zero where the constant is."""
    for constant in (0.0, value):
        x = torch.full((numel,), constant)
        x[:others] = normal(seed, others)[:numel]
        places = MSTopK(ratio).choose(x, Meeting(0, 1, seed, "x"))
        assert places.unique().numel() == places.numel() == MSTopK(ratio).count(numel)


def laplace(seed: int, numel: int) -> Tensor:
    u = torch.rand(numel, generator=torch.Generator().manual_seed(seed)).double() - 0.5
    return (-u.sign() * torch.log1p(-2 * u.abs())).float()


@pytest.mark.technique("mstopk", check=2)
@pytest.mark.parametrize("draw", [normal, laplace])
@pytest.mark.parametrize("ratio", [0.0001, 0.001, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("numel", [1_000, 100_000])
def test_it_sends_nearly_as_much_as_the_largest(draw: Callable[[int, int], Tensor], ratio: float, numel: int) -> None:
    """As long as the k-th largest is above the mean, where the bisection looks (37 % of Laplace's are)."""
    made = MSTopK(ratio)
    for seed in range(2):
        x = draw(seed, numel)
        found, best = (energy(x[p]) for p in (made.choose(x, MEET), largest(x, made.count(numel))))
        assert found >= 0.99 * best


@pytest.mark.parametrize("kind", ["normal", "heavy", "constant", "ends"])
@pytest.mark.parametrize("rounds", [1, 3, 30])
def test_what_it_leaves_out_is_at_most_its_share_in_the_mean(kind: str, rounds: int) -> None:
    """However rough the threshold is: all coordinates between its two ends have the same chance."""
    x = tensor(kind, (100,))
    if kind == "ends":  # which a run that does not go on from the front would rarely reach
        x = torch.cat([torch.full((15,), 4.9), torch.zeros(69), torch.tensor([10.0]), torch.full((15,), 4.9)])
    made = MSTopK(0.5, rounds=rounds)
    left = torch.tensor(
        [energy(x) - energy(x[made.choose(x, Meeting(0, 1, step, "x"))]) for step in range(200)], dtype=torch.float64
    )
    slack = 4 * float(left.std()) / math.sqrt(len(left))
    assert float(left.mean()) <= (1 - made.count(x.numel()) / x.numel()) * energy(x) * (1 + 1e-9) + slack + 1e-12


def test_a_sample_is_a_thousandth_and_enough_for_a_hundred_to_pass() -> None:
    """The limit is aimed at nine tenths of k; where the sample would be all of a tensor, it is the k-th largest."""
    made = TopK(0.01, threshold="sampled")
    assert made.sample(10**8) == (10**5, 900)
    assert made.sample(10**6) == (10**4, 90)
    assert made.sample(9000) == (10**4, 90)
