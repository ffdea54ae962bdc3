"""PowerGossip: differences along edges, against the authors' own numbers and the row's checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import laconic
from laconic.compression.base import Outcome
from laconic.compression.power_gossip import PowerGossip
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.runtime.meeting import EdgeMeeting
from laconic.worker import Kind
from tests.data import fixture
from tests.sync.digits import network


def across(made: PowerGossip, low: Any, high: Any, states: tuple[Any, Any]) -> tuple[Outcome, Outcome, int]:
    """One exchange along the edge 0-1, and the bytes each end sends."""
    exchanges = [
        made.edge(x, s, EdgeMeeting(r, 2, 0, "x", other=1 - r))
        for r, (x, s) in enumerate(((low, states[0]), (high, states[1])))
    ]
    answers: list[Any] = [None, None]
    outcomes: list[Any] = [None, None]
    sent = 0
    while None in outcomes:
        decoded = []
        for k, exchange in enumerate(exchanges):
            try:
                decoded.append(exchange.send(answers[k]).tensor)
            except StopIteration as end:
                outcomes[k] = end.value
        if decoded:
            sent += decoded[0].nbytes
            answers = decoded[::-1]
    return outcomes[0], outcomes[1], sent


def spec(x: torch.Tensor) -> Any:
    from laconic.values.tensor_spec import TensorSpec

    return TensorSpec("x", tuple(x.shape), x.dtype)


@pytest.mark.evidence("power_gossip", recording="power_gossip.npz")
@pytest.mark.parametrize("rank", [1, 2])
def test_the_authors_numbers(rank: int) -> None:
    """A chain of three, weight 1/3 on both edges, six calls without gradient steps: models and factors of each call."""
    kept = fixture("power_gossip.npz")
    made = PowerGossip(rank)
    for tensor in (0, 1):
        x = [torch.from_numpy(v.copy()) for v in kept[f"x0_{tensor}"]]
        states = {
            edge: [
                {"p": torch.from_numpy(kept[f"r{rank}_p0_{tensor}_edge{edge}"].copy()),
                 "q": torch.from_numpy(kept[f"r{rank}_q0_{tensor}_edge{edge}"].copy()),
                 "turn": torch.zeros((), dtype=torch.int64)}
                for _ in range(2)
            ]
            for edge in ("01", "12")
        }  # fmt: skip
        for call in range(6):
            moved = [v.clone() for v in x]
            for edge in ("01", "12"):
                i, j = int(edge[0]), int(edge[1])
                low, high, _ = across(made, x[i], x[j], tuple(states[edge]))  # type: ignore[arg-type]
                moved[i] += low.result / 3
                moved[j] += high.result / 3
                states[edge] = [low.state, high.state]
            x = moved
            for worker in range(3):
                expected = torch.from_numpy(kept[f"r{rank}_x_{tensor}"][worker, call])
                torch.testing.assert_close(x[worker], expected, rtol=1e-5, atol=2e-6)


@pytest.mark.technique("power_gossip", check=2)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_two_who_differ_in_low_rank_agree_soon(rank: int) -> None:
    draw = torch.Generator().manual_seed(rank)
    common = torch.randn(12, 9, generator=draw)
    low = common.clone()
    high = common + torch.randn(12, rank, generator=draw) @ torch.randn(rank, 9, generator=draw)
    made = PowerGossip(rank)
    states = (made.init(spec(low)), made.init(spec(low)))
    total = low + high
    for _ in range(6):
        a, b, _ = across(made, low, high, states)
        low, high, states = low + a.result / 2, high + b.result / 2, (a.state, b.state)
        assert all(torch.equal(states[0][key], states[1][key]) for key in ("p", "q")), "both ends hold the same factors"
    assert float((low - high).abs().max()) <= 1e-4
    torch.testing.assert_close(low + high, total)


@pytest.mark.technique("power_gossip", check=3)
def test_bytes_of_an_edge_alternate() -> None:
    x = torch.randn(12, 9, generator=torch.Generator().manual_seed(0))
    made = PowerGossip(2)
    states: Any = (made.init(spec(x)), made.init(spec(x)))
    sent = []
    for _ in range(5):
        a, b, nbytes = across(made, x, 2 * x, states)
        states = (a.state, b.state)
        sent.append(nbytes)
    assert sent == [0, 4 * 2 * 12, 4 * 2 * 9, 4 * 2 * 12, 4 * 2 * 9]


@pytest.mark.long
@pytest.mark.technique("power_gossip", check=1)
def test_mixing_keeps_the_sum_on_workers_too() -> None:
    """Four workers on a ring with rates of zero and models of their own: mixing alone changes nobody's sum, brings them
    together, and sends what factors and vectors take."""
    sums: list[np.ndarray[Any, Any]] = []

    def body() -> tuple[torch.Tensor, float]:
        model: Any = network(0)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.0)
        model, optimizer = laconic.distribute(model, optimizer, "dpsgd / power_gossip(2) / gossip / ring")
        draw = torch.Generator().manual_seed(laconic.rank())
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=draw))
        before = connect().ledger.sent_bytes(Kind.PAYLOAD)
        first = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
        for _ in range(60):
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        sums.append(first.double().numpy())
        last = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
        return last, connect().ledger.sent_bytes(Kind.PAYLOAD) - before

    out = laconic.simulate(body, 4, Network.flat(4, 1e9, 1e-4))
    models = torch.stack([values for values, _ in out.results]).double()
    np.testing.assert_allclose(models.sum(0).numpy(), np.sum(sums, axis=0), rtol=1e-4, atol=1e-4)
    apart = np.std(sums, axis=0).mean()
    assert float(models.std(0, correction=0).mean()) < 0.5 * apart


@pytest.mark.parametrize(("shape", "rank"), [((9, 7), 2), ((4, 30), 1), ((3, 5, 2), 4)])
def test_two_steps_send_the_bytes_that_are_promised(shape: tuple[int, ...], rank: int) -> None:
    """One factor in each; rank 4 of a matrix with three rows is rank 3."""
    made = PowerGossip(rank)
    models = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    states, sent = (made.init(spec(models[0])), made.init(spec(models[0]))), []
    for _ in range(5):
        low, high, nbytes = across(made, *models, states)
        states = low.state, high.state
        sent.append(nbytes)
    rows, columns = shape[0], models[0].numel() // shape[0]
    assert sent[0] == 0 and sent[1:3] == sent[3:] == [4 * min(rank, rows) * rows, 4 * min(rank, rows) * columns]
    assert made.payload_bytes(spec(models[0]), 2) == sum(sent[1:3]) // 2
