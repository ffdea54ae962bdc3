"""Lazy and quantised changes of gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.federated.client_memory import InMemory, Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Trainer
from laconic.federated.population import Population
from laconic.federated.rule import Report, Sent, Server
from laconic.federated.rules.aqg import AQG, quantised, restored
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from tests.federated.logistic import logistic, skewed


@pytest.mark.technique("aqg", check=1)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_entry_is_off_by_at_most_the_range_over_the_levels(width: int, seed: int) -> None:
    x = torch.randn(1001, generator=torch.Generator().manual_seed(seed))
    whole, largest = quantised(x, width)
    assert int(whole.min()) >= 0 and int(whole.max()) < 2**width and largest == x.abs().max()
    bound = largest / (2**width - 1)
    error = (restored(whole, largest, width) - x).abs()
    assert (error <= bound * (1 + 1e-5) + 1e-7).all() and error.max() > 0.9 * bound
    nothing = torch.zeros(5)
    assert torch.equal(restored(*quantised(nothing, width), width), nothing)


@pytest.mark.technique("aqg", check=1)
@pytest.mark.parametrize("text", ["aqg(10)", "aqg(10, adaptive=false, width=4)", "aqg(10, augmented=true)"])
@pytest.mark.parametrize("seed", [0, 1])
def test_both_sides_keep_the_same_copies_and_messages_have_their_bits(text: str, seed: int) -> None:
    """Of clients that drop out: 65 entries of b bits, in whole bytes, and four bytes for the range."""
    sent: list[tuple[int, int]] = []
    made = FederatedStrategy.parse(text)

    @dataclass(frozen=True)
    class Watched(AQG):
        def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
            found = super().train(local, received, memory)
            nbytes = sum(x.nbytes for x in found.raw.values())
            width = int(found.numbers.get("width", 0))
            assert nbytes == (4 + -(-65 * width // 8) if width else 0)
            sent.append((width, nbytes))
            return found

    rule = made.rule
    assert isinstance(rule, AQG)
    watched = Watched(10, adaptive=rule.adaptive, width=rule.width, augmented=rule.augmented)
    memory, clients = InMemory(), Population(skewed(10, seed), lost=0.3)
    outcome = simulate(logistic(), clients, replace(made, rule=watched), 25, rate=0.3, seed=seed, client_memory=memory)
    copies = outcome.server.kept["copies"]
    assert len(copies) == 10 and any(step.lost for step in outcome.steps)
    for client, (_, copy) in copies.items():
        assert torch.equal(memory.load(client)["rule/copy"], copy)
    assert outcome.up_bytes.sum() == sum(nbytes for _, nbytes in sent)
    widths = {width for width, _ in sent if width}
    assert widths == {4} if not rule.adaptive else len(widths) > 1
    assert any(not width for width, _ in sent)


@pytest.mark.technique("aqg", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_with_many_bits_and_no_threshold_it_is_descent(seed: int) -> None:
    clients = Population(skewed(10, seed))
    text = "aqg(10, adaptive=false, width=16, slack=0)"
    outcome = simulate(logistic(), clients, text, 15, rate=0.3, seed=seed)
    trainer = Trainer(logistic(), seed)
    at = trainer.start
    for _ in range(15):
        at = at - 0.3 * trainer.gradient(at, np.arange(1000))[0]
    torch.testing.assert_close(outcome.parameters, at, rtol=0, atol=1e-4)
    coarse = simulate(logistic(), clients, text.replace("16", "4"), 15, rate=0.3, seed=seed)
    assert (coarse.parameters - at).abs().max() > 10 * (outcome.parameters - at).abs().max()


@pytest.mark.technique("aqg", check=2)
@pytest.mark.parametrize("silence", [0, 3, 7])
def test_nobody_is_silent_for_longer(silence: int) -> None:
    """With a threshold that no change would pass."""
    spoke: dict[int, list[bool]] = {client: [] for client in range(10)}

    @dataclass(frozen=True)
    class Watched(AQG):
        def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
            found = super().train(local, received, memory)
            spoke[local.client].append(bool(found.raw))
            return found

    strategy = FederatedStrategy(Watched(10, slack=1e6, silence=silence))
    simulate(logistic(), Population(skewed(10, 0)), strategy, 20, rate=0.3)
    for said in spoke.values():
        times = np.flatnonzero(said)
        assert times[0] == 0 and (np.diff(times) == silence + 1).all() and len(times) >= 20 // (silence + 1)


def test_what_came_counts_more_where_others_are_missing_and_only_in_this_step() -> None:
    def report(client: int, value: float) -> Report:
        raw: dict[str, Tensor] = {"largest": torch.tensor([value]), "whole": torch.tensor([3], dtype=torch.uint8)}
        return Report(client, 0, 5, raw, {"width": 1.0})  # both entries are at the upper of two levels

    rule = AQG(3, augmented=True)
    server = Server(torch.zeros(2), kept={"copies": {}, "changes": ()})
    server = rule.aggregate(server, [report(client, 1.0) for client in range(3)])
    assert server.parameters.tolist() == [-1.0, -1.0]
    server = rule.aggregate(server, [report(0, 0.6), report(1, 0.6)])  # two of three: 1.5 times
    assert server.parameters.tolist() == pytest.approx([-1 - 1 - 0.6] * 2)
    server = rule.aggregate(server, [Report(client, 0, 5, {}, {}) for client in range(3)])
    assert server.parameters.tolist() == pytest.approx([-2.6 - 1.4] * 2)
