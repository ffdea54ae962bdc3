"""Ratios that change with the iterations, alike on all workers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import laconic
from laconic.compression.adaptive_ratio import DGC, IterationRatio, MeasuredRatio, with_appended_float
from laconic.compression.base import Compressor, Exchange, State
from laconic.errors import ContractError, StrategyError
from laconic.real.connect import connect
from laconic.runtime.meeting import Meeting
from laconic.worker import Kind
from tests.compression.table import answer_requests, compressor, meet, spec_of, tensor
from tests.sync.digits import data, network


def exchanged(
    made: Compressor, inputs: list[Tensor], states: list[State], step: int, losses: list[float]
) -> tuple[list[Any], list[int]]:
    """One exchange of workers that have logged these losses: outcomes, and what each handed over."""

    def logged_loss(loss: float) -> Any:
        return lambda metric: loss if metric == "loss" else None

    exchanges = [
        made.exchange(x.clone(), state, Meeting(rank, len(inputs), step, "x", logged=logged_loss(losses[rank])))
        for rank, (x, state) in enumerate(zip(inputs, states, strict=True))
    ]
    answers: list[Any] = [None] * len(exchanges)
    sent_bytes = [0] * len(exchanges)
    while True:
        requests, outcomes = [], []
        for rank, (exchange, answer) in enumerate(zip(exchanges, answers, strict=True)):
            try:
                requests.append(exchange.send(answer))
                sent_bytes[rank] += requests[-1].tensor.nbytes
            except StopIteration as end:
                outcomes.append(end.value)
        if not requests:
            return outcomes, sent_bytes
        answers = answer_requests(requests)


@pytest.mark.technique("iteration_ratio", check=1)
@pytest.mark.parametrize("workers", [1, 3])
def test_shares_by_the_list_are_the_list(workers: int) -> None:
    """Every worker sends what topk of that share sends, epoch by epoch; the last share goes on."""
    steps = 3
    made = compressor(f"topk(0.01)+iteration_ratio(by=list, steps={steps})+ef")
    states = [made.init(spec_of(tensor("long"))) for _ in range(workers)]
    for step in range(steps * len(DGC) + 4):
        inputs = [tensor("long", seed=10 * step + rank) for rank in range(workers)]
        messages: list[list[tuple[str, Tensor]]] = []
        outcomes = meet(made, inputs, states, step, payloads=messages)
        states = [outcome.state for outcome in outcomes]
        share = [0.25, 0.0625, 0.015625, 0.004, 0.001][min(step // steps, 4)]
        expected = compressor(f"topk({share})").payload_bytes(spec_of(inputs[0]), workers)
        assert [sum(x.nbytes for _, x in decoded) for decoded in messages] == [expected] * workers
    assert made.payload_bytes(spec_of(inputs[0]), workers) == expected
    assert made.settling == 0 or made.settling == 4 * steps


@pytest.mark.technique("iteration_ratio", check=1)
@pytest.mark.parametrize("by", ["energy", "progress"])
@pytest.mark.parametrize("inner", ["topk(0.02)", "topk(0.02)+qsgd", "sidco(0.02)", "randk(0.02)", "gtopk(0.02)"])
def test_all_workers_have_the_same_share_in_the_same_step(by: str, inner: str) -> None:
    """Though they lose and log different numbers; and the share does change, as their mean says."""
    made = compressor(f"{inner}+iteration_ratio({by}, steps=2, low=0.2, high=0.3)")
    assert isinstance(made, MeasuredRatio)
    states = [made.init(spec_of(tensor("long"))) for _ in range(3)]
    shares = []
    for step in range(16):
        inputs = [tensor(kind, (120, 101), seed=10 * step + r) for r, kind in enumerate(("heavy", "normal", "sparse"))]
        losses = [1 / (1 + step) + rank for rank in range(3)]
        outcomes, _ = exchanged(made, inputs, states, step, losses)
        states = [outcome.state for outcome in outcomes]
        assert len({float(state["share"]) for state in states}) == 1
        assert all(torch.equal(outcome.result, outcomes[0].result) for outcome in outcomes)
        shares.append(float(states[0]["share"]))
    assert shares[0] == 0.02 and len(set(shares)) > 1


def test_lost_energy_comes_between_its_bounds_and_stays() -> None:
    """From too much sent and from too little."""
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    for start in (1.0, 0.001):
        made = compressor(f"topk({start})+iteration_ratio(steps=2, low=0.5, high=0.9)")
        states, seen = [made.init(spec_of(x))], []
        for step in range(60):
            (outcome,) = meet(made, [x], states, step)
            states = [outcome.state]
            seen.append(float((x - outcome.result).square().sum() / x.square().sum()))
        assert all(0.5 <= lost <= 0.9 for lost in seen[-20:]), start
        assert not 0.5 <= seen[0] <= 0.9


@pytest.mark.parametrize("seed", range(3))
def test_each_worker_measures_what_its_own_message_lost(seed: int) -> None:
    """Not what the mean lost of it; the mean of both measurements is what the next step receives."""
    made = compressor("topk(0.1)+iteration_ratio")
    inputs = [tensor(kind, (50, 4), seed) for kind in ("normal", "heavy", "sparse")]
    outcomes = meet(made, inputs, [made.init(spec_of(x)) for x in inputs])
    for x, outcome in zip(inputs, outcomes, strict=True):
        (alone,) = meet(compressor("topk(0.1)"), [x])
        assert torch.equal(outcome.sent.view_as(x), alone.result)
        left = (x - alone.result).square().sum() / x.square().sum()
        torch.testing.assert_close(outcome.state["told"], left.view(1))


def test_one_float_rides_on_the_message() -> None:
    x = tensor("long")
    for inner in ("topk(0.05)", "randk(0.05)", "sidco(0.05)"):
        made, plain = compressor(f"{inner}+iteration_ratio"), compressor(inner)
        messages: list[list[tuple[str, Tensor]]] = []
        first = meet(made, [x, -x, 2 * x], payloads=messages)
        bare: list[list[tuple[str, Tensor]]] = []
        same = meet(plain, [x, -x, 2 * x], payloads=bare)
        assert torch.equal(first[0].result, same[0].result)
        for decoded, without in zip(messages, bare, strict=True):
            assert len(decoded) == len(without), "no message more"
            assert sum(y.nbytes for _, y in decoded) == sum(y.nbytes for _, y in without) + 4
        assert made.payload_bytes(spec_of(x), 3) == plain.payload_bytes(spec_of(x), 3) + 4


def test_progress_that_slows_asks_for_more() -> None:
    made = IterationRatio("progress", steps=1).around(compressor("topk(0.01)"))
    states, shares = [made.init(spec_of(tensor("normal")))], []
    for step, loss in enumerate([10.0, 8.0, 6.0, 4.0, 3.9, 3.8]):
        (outcome,), _ = exchanged(made, [tensor("normal", seed=step)], states, step, [loss])
        states = [outcome.state]
        shares.append(float(outcome.state["share"]))
    assert shares == [0.01, 0.01, 0.01, 0.01, 0.02, 0.04]


def test_progress_without_a_loss_is_refused() -> None:
    made = IterationRatio("progress", steps=2).around(compressor("topk(0.01)"))
    states = [made.init(spec_of(tensor("normal")))]
    with pytest.raises(ContractError, match=r"laconic\.log"):
        for step in range(2):
            (outcome,), _ = exchanged(made, [tensor("normal")], states, step, [math.nan])
            states = [outcome.state]


def test_what_is_not_finite_decides_nothing() -> None:
    made = compressor("topk(0.01)+iteration_ratio(steps=1)+ef")
    states = [made.init(spec_of(tensor("normal"))) for _ in range(2)]
    for step in range(4):
        bad = torch.full((24, 20), math.inf)
        states = [outcome.state for outcome in meet(made, [tensor("normal"), bad], states, step)]
    assert {float(state["inner.share"]) for state in states} == {0.01}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int8+iteration_ratio", "no share"),
        ("topk+iteration_ratio(shares=[])", "not shares"),
        ("topk+iteration_ratio(shares=[0.5, 2.0])", "not shares"),
        ("topk+iteration_ratio(low=0.9, high=0.5)", "above"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(StrategyError, match=says):
        compressor(text)


def bytes_to_target(strategy: str, seed: int, target: float = 0.2, steps: int = 400) -> float:
    """What worker 0 sends until the training loss is there, looked at every fifth step."""

    def body() -> float:
        images, labels, _, _ = data()
        mine = torch.arange(laconic.rank(), len(labels), laconic.size())
        draw = torch.Generator().manual_seed(1000 * seed + laconic.rank())
        model: Any = network(seed)
        made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = laconic.distribute(model, made, strategy)
        ledger = connect().ledger
        before = ledger.sent_bytes(Kind.PAYLOAD)
        for step in range(steps):
            chosen = mine[torch.randint(len(mine), (16,), generator=draw)]
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 4:
                with torch.no_grad():
                    loss = functional.cross_entropy(model(images), labels).item()
                if loss <= target:
                    return ledger.sent_bytes(Kind.PAYLOAD) - before
        return math.inf

    sent: float = laconic.simulate(body, 4).results[0]
    return sent


@pytest.mark.long
@pytest.mark.technique("iteration_ratio", check=2)
def test_bytes_to_a_target_are_near_those_of_the_best_fixed_ratio() -> None:
    """Over six seeds together, which even out what rounding does to a single one. With momentum the smallest fixed
    ratio never gets there, and the bytes of the largest are many times the best one's."""

    def total(word: str, at_most: float = math.inf) -> float:
        sent = 0.0
        for seed in range(6):
            sent += bytes_to_target(f"flat+{word}+ef / sequential", seed) if sent < at_most else 0.0
        return sent

    best = math.inf
    for ratio in (0.01, 0.1, 1.0, 0.001):
        best = min(best, total(f"topk({ratio})", at_most=best))
    assert math.isfinite(best)
    assert total("topk(0.001)+iteration_ratio") <= 1.1 * best


@pytest.mark.parametrize("op", ["sum", "mean", "max", "gather"])
def test_a_float_that_travels_with_a_message_arrives_as_the_mean(op: str) -> None:
    """Appended where a message can take it, in a message of its own beside a maximum; the message is not changed."""
    meets = [Meeting(rank, 3, 0, "x") for rank in range(3)]
    x = [torch.tensor([[1.0, 2.0], [3.0, float(rank)]]) for rank in range(3)]

    def exchange(rank: int) -> Exchange:
        sent = x[rank].clone() if op != "gather" else x[rank].clone().view(torch.uint8)
        return (yield getattr(meets[rank], op)(sent))

    joined = [with_appended_float(exchange(r), torch.tensor([float(r * r)]), meets[r]) for r in range(3)]
    answers: list[Any] = [None] * 3
    found: list[Any] = []
    while not found:
        requests = []
        for generator, answer in zip(joined, answers, strict=True):
            try:
                requests.append(generator.send(answer))
            except StopIteration as end:
                found.append(end.value)
        answers = answer_requests(requests) if requests else []
    stacked = torch.stack(x)
    plain = {"sum": stacked.sum(0), "mean": stacked.mean(0), "max": stacked.amax(0), "gather": stacked}[op]
    for outcome, received in found:
        assert received == pytest.approx(5 / 3)
        torch.testing.assert_close(outcome.view(torch.float32).view(plain.shape), plain)
