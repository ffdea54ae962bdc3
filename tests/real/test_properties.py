"""Every registered technique against what it claims, with real processes; later ones inherit these by claiming."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import laconic
from laconic import claims, registry
from laconic.architecture.base import Architecture
from laconic.compression.base import Outcome
from laconic.compression.chain import chain
from laconic.compression.none import Identity
from laconic.compression.optional import prices_of, settling_of
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete, concurrently, run_exchanges
from laconic.runtime.meeting import Meeting
from laconic.runtime.tiers import level_names
from laconic.strategy import Sentence, Strategy, Word
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Kind, Reduce
from tests.cases import first_of
from tests.real.pool import Pool, PoolRank
from tests.real.race import sgd
from tests.real.test_against_ddp import mlp, plain_step
from tests.sync.moments import needs_adam

SHAPES = [(1,), (17,), (8, 5), (3, 4, 2), (1000,)]


def claiming(claim: type) -> list[str]:
    return [e.name for e in registry.entries() if any(isinstance(c, claim) for c in e.claims)]


def compressors() -> list[str]:
    words = [Word(e.name) for e in registry.entries("compression") if e.kind == "word"]
    return [word.name for word in words if not word.technique.wraps and word.make().meets != "edge"]


def claim_of(name: str, kind: type) -> Any:
    return next(c for c in registry.find(name).claims if isinstance(c, kind))


def group_of(member: PoolRank) -> Any:
    return connect().adopt(member.process_group)  # type: ignore[attr-defined]


def draw(member: PoolRank, shape: tuple[int, ...], rank: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(31 * (member.rank if rank is None else rank) + len(shape))
    return torch.randn(shape, generator=generator)


def exchanged(member: PoolRank, name: str, shape: tuple[int, ...]) -> tuple[Outcome, float, float]:
    """One exchange by a compressor, the payload bytes that all workers sent for it, and those that were promised."""
    group, ledger = group_of(member), connect().ledger
    compressor = chain([Word(name).make()])
    spec = TensorSpec("x", shape, torch.float32)
    meet = Meeting(member.rank, member.size, 0, "x")
    architecture = Sentence().architecture.make()
    if not compressor.accepts(spec) and name != "none":
        return Outcome(draw(member, shape)), 0.0, 0.0
    state = compressor.init(spec)
    for _ in range(settling_of(compressor) + 1):
        before = ledger.sent_bytes(Kind.PAYLOAD)
        exchange = compressor.exchange(draw(member, shape), state, meet)
        in_flight = InFlight(run_exchanges([exchange], lambda request: architecture.carry(request, group)))
        complete([in_flight])
        state = in_flight.result[0].state
    sent = torch.tensor([ledger.sent_bytes(Kind.PAYLOAD) - before], dtype=torch.float64)
    group.all_reduce(sent, control=1.0).wait()
    prices = prices_of(compressor, spec, member.size)
    promised = member.size * sum(architecture.sent_bytes(nbytes, member.size, how) for how, nbytes in prices)
    return in_flight.result[0], float(sent), promised


def lossless(member: PoolRank, name: str) -> None:
    for shape in SHAPES:
        outcome, _, _ = exchanged(member, name, shape)
        mean = sum(draw(member, shape, r) for r in range(member.size)) / member.size
        torch.testing.assert_close(outcome.result, mean)


def payload(member: PoolRank, name: str) -> None:
    formulas = [c.formula for c in registry.find(name).claims if isinstance(c, claims.Payload)]
    word = Word(name).make()
    for shape in SHAPES:
        _, sent, promised = exchanged(member, name, shape)
        spec = TensorSpec("x", shape, torch.float32)
        exact = pytest.approx(promised)  # the ledger adds up shares of bytes, which rounds
        assert sent == exact or (getattr(word, "ragged", False) and sent < promised)
        if word.accepts(spec) or name == "none":
            assert all(formula(spec, word) == word.payload_bytes(spec, member.size) for formula in formulas)


def replicas_equal(member: PoolRank, name: str) -> None:
    model, optimizer = _distributed(member, name)
    for step in range(5):
        plain_step(model, optimizer, member.rank, step)
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        rows = group_of(member).all_gather(flat).wait()
        assert all(torch.equal(rows[0], row) for row in rows)


def _distributed(member: PoolRank, strategy: str) -> Any:
    model = mlp()
    return laconic.distribute(model, sgd(model.parameters()), strategy, process_group=member.process_group)


def variants(name: str) -> list[Any]:
    """A word with its defaults, and with every choice of every knob that has choices."""
    made = [Word(name).make()]
    for knob in registry.knobs(type(made[0])):
        made += [Word.of(name, **{knob.name: choice}).make() for choice in knob.bounds.choices or ()]
    return made


def line_of(member: PoolRank, architecture: Architecture) -> Any:
    """What joins these workers: their group, or the server of a model of theirs."""
    if architecture.collective:
        return group_of(member)
    _, optimizer = _distributed(member, f"bsp / none / {architecture.name}")
    return optimizer.session.partitions[0].tiers[0].server


def sums(member: PoolRank, name: str) -> None:
    ledger = connect().ledger
    for architecture in variants(name):
        group = line_of(member, architecture)
        for shape in [(0,), *SHAPES]:
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32):
                values = [(100 * draw(member, shape, r)).to(torch.int32) // 4 for r in range(member.size)]
                x = values[member.rank].to(dtype)
                in_flight = InFlight(concurrently([architecture.carry(Reduce(x.clone(), "sum"), group)]))
                complete([in_flight])
                expected = sum(v.to(dtype) for v in values)
                assert torch.equal(in_flight.result[0], expected), (architecture, shape, dtype)
        if any(isinstance(c, claims.WireFactor) for c in registry.find(name).claims):
            factor = claim_of(name, claims.WireFactor).formula(member.size)
            x = torch.ones(12 * 5 * 7)
            before = ledger.sent_bytes(Kind.PAYLOAD)
            complete([InFlight(concurrently([architecture.carry(Reduce(x, "sum"), group)]))])
            assert ledger.sent_bytes(Kind.PAYLOAD) - before == pytest.approx(factor * x.nbytes)
            assert architecture.sent_bytes(x.nbytes, member.size) == pytest.approx(factor * x.nbytes)


@pytest.mark.parametrize("name", claiming(claims.Lossless))
@pytest.mark.parametrize("workers", first_of([3, 1, 2, 4], 1))
def test_lossless(pool: Pool, name: str, workers: int) -> None:
    pool.run(lossless, name, workers=workers)


@pytest.mark.parametrize("name", compressors())
@pytest.mark.parametrize("workers", [2, 4])
def test_payload_is_what_is_promised(pool: Pool, name: str, workers: int) -> None:
    pool.run(payload, name, workers=workers)


@pytest.mark.parametrize("name", claiming(claims.ReplicasEqual))
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.technique("bsp", check=2)
def test_replicas_stay_equal(pool: Pool, name: str, workers: int) -> None:
    pool.run(replicas_equal, name, workers=workers)


@pytest.mark.parametrize("name", claiming(claims.EveryRankEndsWithTheSum))
@pytest.mark.parametrize("workers", first_of([3, 1, 2, 4], 1))
def test_every_rank_ends_with_the_sum(pool: Pool, name: str, workers: int) -> None:
    pool.run(sums, name, workers=workers)


def runs(member: PoolRank, text: str) -> None:
    """Any named sentence trains, and its ranks stay together as its sync rule says."""
    model = mlp()
    group = None if level_names(Strategy.parse(text)) else member.process_group  # tiers span everybody
    make: Any = torch.optim.Adam if needs_adam(text) else sgd
    model, optimizer = laconic.distribute(model, make(model.parameters()), text, process_group=group)
    for step in range(3):
        plain_step(model, optimizer, member.rank, step)


@pytest.mark.parametrize("name", [e.name for e in registry.entries() if e.kind == "sentence"])
def test_named_sentences_train(pool: Pool, name: str) -> None:
    pool.run(runs, name, workers=4 if level_names(Strategy.parse(name)) else 2)


def wrapped_identity(member: PoolRank) -> None:
    from laconic.compression.error_feedback import Remembering

    group, compressor, spec = group_of(member), Remembering(Identity()), TensorSpec("x", (8, 5), torch.float32)
    state = compressor.init(spec)
    architecture = Sentence().architecture.make()
    for step in range(5):
        x = torch.randn(8, 5)
        plain = InFlight(concurrently([architecture.carry(Reduce(x.clone(), "mean"), group)]))
        complete([plain])
        wrapped = InFlight(
            run_exchanges(
                [compressor.exchange(x.clone(), state, Meeting(member.rank, member.size, step, "x"))],
                lambda request: architecture.carry(request, group),
            )
        )
        complete([wrapped])
        state = wrapped.result[0].state
        assert torch.equal(wrapped.result[0].result, plain.result[0]) and not state["error"].any()


@pytest.mark.technique("error_feedback", check=2)
def test_memory_around_the_identity_stays_empty(pool: Pool) -> None:
    pool.run(wrapped_identity)
