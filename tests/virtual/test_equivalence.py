"""Written once, run on two engines: real processes and virtual workers end with the same parameters.

Bit for bit with two workers, and with four where the order of sums is ours. Every registered word is here by itself:
the list is read from the registry.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import laconic
from laconic import registry
from laconic.compression.optional import refusal_of_memory
from laconic.real.connect import connect
from laconic.runtime.tiers import is_collective
from laconic.strategy import Sentence, Strategy, Word
from laconic.sync.moments import MomentRule
from laconic.worker import Kind
from tests.real.pool import Pool, PoolRank
from tests.real.test_against_ddp import batch
from tests.sync.moments import needs_adam


class Net(nn.Module):
    """A branch that workers take in turns, batch norm, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.branch = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, take: bool) -> torch.Tensor:
        h = torch.relu(self.norm(self.first(x)))
        h = h + torch.tanh(self.branch(h)) if take else h
        return self.head(h + F.dropout(h, 0.2))


def train(strategy: str, steps: int = 8) -> tuple[torch.Tensor, float]:
    """A whole script's worth: distribute, steps with dropout and accumulation, parameters and bytes at the end; of
    letters to a server only the payload, since what stands beside it tells how far both sides are at that moment."""
    torch.manual_seed(4)
    model = Net()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = laconic.distribute(model, optimizer, strategy)
    torch.manual_seed(10 + laconic.rank())
    kind = None if is_collective(Strategy.parse(strategy)) else Kind.PAYLOAD
    before = connect().ledger.sent_bytes(kind)
    for step in range(steps):
        with model.no_sync():
            x, y = batch(laconic.rank(), 100 + step)
            F.cross_entropy(model(x, True), y).backward()
        x, y = batch(laconic.rank(), step)
        F.cross_entropy(model(x, (step + laconic.rank()) % 2 == 0), y).backward()
        if optimizer.session.deferred_step.pending:  # type: ignore[attr-defined]  # torch's own is refused there
            laconic.clip_grad_norm_(optimizer, 0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.session.deferred_step.settle()  # type: ignore[attr-defined]  # what is under way would be counted or not
    return torch.cat([p.detach().flatten() for p in model.parameters()]), connect().ledger.sent_bytes(kind) - before


def on_processes(crew: PoolRank, strategy: str) -> tuple[torch.Tensor, float]:
    return train(strategy)


def sentences() -> list[str]:
    """Every word with its defaults and with each of its choices, every named sentence, and the other shapes; of
    compressors, whose choices `tests/compression` tries, the default alone and with a memory."""
    found: list[str] = []
    for entry in registry.entries():
        if entry.kind == "sentence":
            found.append(entry.name)
        elif entry.kind == "word" and entry.axis == "compression":
            word = Word(entry.name)
            if not word.technique.wraps:
                found.append(str(Sentence.of(word)))
            if entry.name != "none" and not word.technique.wraps and refusal_of_memory(word.make()) is None:
                found.append(str(Sentence.of((word, Word("error_feedback")))))
        elif entry.kind == "word" and entry.axis in registry.AXES and not _goes_on(entry.name):  # see below
            found += [str(Sentence.of(word)) for word in [Word(entry.name), *_choices(entry.name)]]
    shapes = ["{matrix: bf16+ef, else: none}", "bsp until step 3, then fp16", "[bsp]@node > [bf16+ef]@site"]
    return list(dict.fromkeys([*found, *shapes]))


def _goes_on(name: str) -> bool:
    """Whether a rule takes over from an optimizer that has made some steps."""
    rule = Word(name).technique
    return issubclass(rule, MomentRule) and not rule.can_start


def _choices(name: str) -> list[Word]:
    knobs = registry.knobs(Word(name).technique)
    return [Word.of(name, **{knob.name: choice}) for knob in knobs for choice in knob.bounds.choices or ()]


def remembers(strategy: str) -> bool:
    """A compressor with a memory: two workers show that its bits are the same."""
    return "+error_feedback" in strategy and "@" not in strategy


LATE = "osp(share=1, delay=2) / cast_int8 / allreduce"
MECHANISMS = (
    "bsp / none / allreduce",
    "bsp / none / allreduce(order=rank)",
    "bsp / none / parameter_server",
    "bsp / scaled_sign+error_feedback / allreduce",
    "bsp / topk+error_feedback / allreduce",
    "bsp / power_sgd / allreduce",
    "bsp / sign_sgd / allreduce",
    "bsp / gtopk / allreduce",
    "bsp / intellect1_int8_ring / allreduce",
    "bsp / huffman / allreduce",
    "bsp / none / allreduce / dear",
    "bsp / none / allreduce / bytescheduler",
    "local_sgd / none / allreduce",
    "streaming_diloco / none / allreduce",
    LATE,
    "dpsgd / none / gossip / ring",
    "{matrix: bf16+ef, else: none}",
    "bsp until step 3, then fp16",
    "[bsp]@node > [bf16+ef]@site",
)
"""One sentence for each way to exchange, order or govern messages: those that `make test` runs on processes."""


def marked(strategies: list[str]) -> list[object]:
    """All sentences, of which those that repeat a mechanism are left to `make test-all`."""
    return [s if s in MECHANISMS else pytest.param(s, marks=pytest.mark.long) for s in strategies]


def marked_by_word(strategies: list[str]) -> list[object]:
    """All sentences, of which those that only add a memory to another one are left to `make test-all`."""
    again = (s for s in strategies if remembers(s) and s.replace("+error_feedback", "") in strategies)
    left = set(again)
    return [pytest.param(s, marks=pytest.mark.long) if s in left else s for s in strategies]


@pytest.mark.parametrize("strategy", marked_by_word(sentences()))
def test_every_word_trains_on_virtual_workers(strategy: str) -> None:
    """Some workers take a few steps: parameters stay finite and move, and bytes are counted."""
    parsed = Strategy.parse(strategy)
    alike = isinstance(parsed, Sentence) and parsed.topology is None
    found = laconic.simulate(lambda: race_among(strategy, None, steps=4), workers=2 if alike else 4)
    torch.manual_seed(4)
    start = torch.cat([p.detach().flatten() for p in Net().parameters()])
    assert all(x.isfinite().all() and not torch.equal(x, start) for x in found.results)
    assert all(worker.ledger.sent_bytes() > 0 for worker in found.workers)


def races(strategy: str) -> bool:
    """Whether who comes first decides: then no two runs need end alike."""
    parsed = Strategy.parse(strategy)
    return isinstance(parsed, Sentence) and parsed.sync.make().races


def decides(strategy: str) -> bool:
    """Whether a plan is chosen by the clock: then its padding may differ by some bytes."""
    parsed = Strategy.parse(strategy)
    return isinstance(parsed, Sentence) and parsed.schedule.technique.decides


def in_rank_order(strategy: str) -> bool:
    return "order=rank" in strategy or "allreduce(rank)" in strategy


@pytest.mark.long
@pytest.mark.parametrize("strategy", [s for s in sentences() if not (races(s) or remembers(s) or needs_adam(s))])
def test_four_workers_agree(pool: Pool, strategy: str) -> None:
    """To rounding where the backend orders sums, to the bit where we do; the same bytes in either case."""
    real = pool.run(on_processes, strategy, workers=4)
    virtual = laconic.simulate(lambda: train(strategy), workers=4).results
    for (a, said), (b, counted) in zip(real, virtual, strict=True):
        if in_rank_order(strategy):
            assert torch.equal(a, b)
        torch.testing.assert_close(a, b, rtol=1e-2 if "cast" in strategy or "fp16" in strategy else 1e-4, atol=1e-3)
        assert said == pytest.approx(counted, abs=1e-6, rel=1e-3 if decides(strategy) else None)
    assert isinstance(Strategy.parse(strategy), Strategy)


def two_of(crew: PoolRank, strategy: str) -> torch.Tensor:
    """The same script among two of the pool's processes."""
    return train_among(strategy, crew)


def train_among(strategy: str, crew: PoolRank | None) -> torch.Tensor:
    torch.manual_seed(4)
    model, rank = Net(), laconic.rank()
    options = {} if crew is None else {"process_group": crew.process_group}
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = laconic.distribute(model, optimizer, strategy, **options)
    torch.manual_seed(10 + rank)
    for step in range(8):
        x, y = batch(rank, step)
        F.cross_entropy(model(x, (step + rank) % 2 == 0), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


SIGNS = "flat+scaled_sign+two_hop(memory=true)+ef / allreduce"
FROZEN = [
    f"bsp until step 3, then frozen_adam / {SIGNS}",
    f"freezing_adam(kappa=2) / {SIGNS} until step 4, then local_frozen_adam(doubling=1) / {SIGNS}",
]

CODED = [
    f"bsp / {codec}+per_hop / collective({name})" for codec, name in (("int8", "hierarchical"), ("qsgd", "direct"))
]


@pytest.mark.parametrize(
    "strategy",
    marked([*FROZEN, *CODED, LATE, *(s for s in sentences() if "@" not in str(Strategy.parse(s)) and not races(s))]),
)
def test_two_workers_have_the_same_bits(pool: Pool, strategy: str) -> None:
    real = pool.run(two_of, strategy, workers=2)
    virtual = laconic.simulate(lambda: train_among(strategy, None), workers=2).results
    assert all(torch.equal(a, b) for a, b in zip(real, virtual, strict=True))


def two_racing(crew: PoolRank, strategy: str) -> torch.Tensor:
    return race_among(strategy, crew)


def race_among(strategy: str, crew: PoolRank | None, steps: int = 8) -> torch.Tensor:
    """Ends with a goodbye, so that nobody waits for whoever has ended."""
    torch.manual_seed(4)
    model, rank = Net(), laconic.rank()
    options = {} if crew is None else {"process_group": crew.process_group}
    adam = needs_adam(strategy)
    rule = torch.optim.AdamW(model.parameters()) if adam else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    optimizer: torch.optim.Optimizer
    model, optimizer = laconic.distribute(model, rule, strategy, **options)
    for step in range(steps):
        x, y = batch(rank, step)
        F.cross_entropy(model(x, (step + rank) % 2 == 0), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    laconic.undistribute(model, optimizer)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.long
@pytest.mark.parametrize("strategy", list(filter(races, sentences())))
def test_rules_that_race_train_on_both_engines(pool: Pool, strategy: str) -> None:
    """Two real processes and two virtual workers come to their ends, with numbers, having moved about as far."""
    real = pool.run(two_racing, strategy, workers=2)
    virtual = laconic.simulate(lambda: race_among(strategy, None), workers=2).results
    torch.manual_seed(4)
    start = torch.cat([p.detach().flatten() for p in Net().parameters()])
    far = [max((x - start).norm().item() for x in ends) for ends in (real, virtual)]
    assert all(x.isfinite().all() for x in (*real, *virtual)) and min(far) > 0
    assert max(far) < 4 * min(far)
