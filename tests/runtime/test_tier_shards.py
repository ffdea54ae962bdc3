"""Gradients that two tiers average cross the links between hosts once: each member of a host takes a shard across."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.compression.base import Compressor
from laconic.compression.optional import takes_vectors
from laconic.errors import ContractError
from laconic.network.network_tree import Level, Network
from laconic.runtime import shard_memory, tier_shards
from laconic.runtime.spans import Span, piece_of, pieces_of
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Kind
from tests.cases import first_of

HOSTS, MEMBERS = 2, 4
NETWORK = Network(HOSTS * MEMBERS, (Level(1, 1e10, 1e-5), Level(MEMBERS, 1e8, 1e-3)))
OUTER = first_of(["bsp", "topk(0.1)+ef", "int8+two_hop", "cast_bf16+ef", "scaled_sign+ef"], 3)


class Crossed(nn.Module):
    """Layers that backward reaches in another order than that of their registration, and one that nobody uses; no
    length is a multiple of four."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.between = nn.Linear(11, 3), nn.Linear(5, 7), nn.Linear(7, 11)
        self.unused = nn.Parameter(torch.ones(3))
        self.sometimes = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        if laconic.rank() == 1:
            x = x * self.sometimes
        out: Tensor = self.last(torch.tanh(self.between(torch.tanh(self.first(x)))))
        return out


def trained(strategy: str, steps: int = 4) -> Any:
    """What one worker ends with: its parameters, its payload bytes and its distributed optimizer."""
    torch.manual_seed(3)
    model = Crossed()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, strategy)  # type: ignore[assignment]
    for step in range(steps):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(100 * step + laconic.rank()))
        model(x).square().mean().backward()
        if "dear" not in strategy:  # whose averages arrive later
            assert model.unused.grad is None and model.sometimes.grad is not None
        optimizer.step()
        optimizer.zero_grad()
    laconic.finish(model, optimizer)
    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    return values, optimizer.session.worker.ledger.sent_bytes(Kind.PAYLOAD), optimizer


def on_hosts(strategy: str, steps: int = 4) -> list[Any]:
    return laconic.simulate(lambda: trained(strategy, steps), HOSTS * MEMBERS, NETWORK).results


@pytest.fixture
def crossing(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, float]:
    """The bytes that cross between hosts, by operation, of everything that is simulated."""
    found: dict[str, float] = {}
    job = Network.job

    def counting(self: Network, what: str, tensor: Any, flow: Any, members: Any, *rest: Any, **more: Any) -> Any:
        host = [member // MEMBERS for member in members]
        for a, b, nbytes in zip(flow.sources, flow.destinations, flow.nbytes, strict=True):
            if host[a] != host[b]:
                name = what.split(" ")[0]
                found[name] = found.get(name, 0.0) + nbytes
        return job(self, what, tensor, flow, members, *rest, **more)

    monkeypatch.setattr(Network, "job", counting)
    return found


@pytest.fixture
def full_copies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let every member of a host send all of it, from now on."""

    def apply() -> None:
        monkeypatch.setattr("laconic.runtime.buckets.crosses_in_shards", lambda *_: False)

    return apply


@pytest.mark.parametrize("inner", ["bsp", "bsp / allreduce(rank)", "bsp / sequential", "bsp / none / allreduce / dear"])
def test_the_result_is_the_mean_of_all_workers(inner: str) -> None:
    (flat, *_), *_ = on_hosts("bsp")
    found = [values for values, *_ in on_hosts(f"[{inner}]@node > [bsp]@site")]
    torch.testing.assert_close(found[0], flat, rtol=0, atol=1e-6)
    assert all(torch.equal(values, found[0]) for values in found)


@pytest.mark.parametrize("outer", OUTER)
def test_a_quarter_of_the_bytes_crosses(
    outer: str, crossing: dict[str, float], full_copies: Callable[[], None]
) -> None:
    """Of the payload of messages; what else crosses (first parameters, control) is the same or less."""

    def crossed(steps: int) -> float:
        crossing.clear()
        found = [values for values, *_ in on_hosts(f"[bsp]@node > [{outer}]@site", steps)]
        assert all(torch.equal(values, found[0]) for values in found), "all members have the same bits"
        return sum(crossing.values())

    shards = crossed(5) - crossed(2)
    full_copies()
    copies = crossed(5) - crossed(2)
    assert (
        1 / MEMBERS <= shards / copies < (1.05 if outer == "bsp" else 1.6) / MEMBERS
    )  # pieces have heads of their own


@pytest.mark.parametrize("outer", first_of(["topk(0.1)+ef", "scaled_sign+ef", "int8+two_hop"], 1))
def test_large_tensors_cross_at_a_quarter(
    outer: str, crossing: dict[str, float], full_copies: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn, "Linear", _wide)

    def crossed(steps: int) -> float:
        crossing.clear()
        on_hosts(f"[bsp]@node > [{outer}]@site", steps)
        return sum(crossing.values())

    shards = crossed(2) - crossed(1)
    full_copies()
    assert shards / (crossed(2) - crossed(1)) == pytest.approx(1 / MEMBERS, rel=0.03)


def _wide(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Unflatten(-1, (inputs, 1)), _Wide(inputs, outputs))


class _Wide(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, 501, outputs) / 20)

    def forward(self, x: Tensor) -> Tensor:
        return (x[..., None] * self.weight).mean((-3, -2))


@pytest.mark.parametrize("outer", OUTER)
def test_what_a_member_sends_is_an_all_reduce_and_its_shard(outer: str) -> None:
    """Payload bytes of a step: 2·3/4 of the gradients inside, and of the pieces of one shard across; counted."""
    before, after = (on_hosts(f"[bsp]@node > [{outer}]@site", steps) for steps in (2, 3))
    model = Crossed()
    elements = sum(p.numel() for p in model.parameters())
    sent = [b[1] - a[1] for a, b in zip(before, after, strict=True)]
    if outer == "bsp":
        assert sum(sent[:MEMBERS]) == pytest.approx(4 * elements * (2 * (MEMBERS - 1) + 1))
    else:
        inside = 4 * elements * 2 * (MEMBERS - 1)
        assert 0 < sum(sent[:MEMBERS]) - inside < 4 * elements * 0.6


class Constant(nn.Module):
    """A model whose gradient does not depend on its parameters: what was applied tells what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.b, self.a = nn.Parameter(torch.zeros(37)), nn.Parameter(torch.zeros(5, 9))

    def forward(self, weights: tuple[Tensor, Tensor]) -> Tensor:
        return (self.a * weights[0]).sum() + (self.b * weights[1]).sum()


def remembered(strategy: str, steps: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The sum of what was applied, the sum of this worker's gradients, and its memory by piece."""
    model = Constant()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = laconic.distribute(model, optimizer, strategy)  # type: ignore[assignment]
    total, draw = torch.zeros(82), torch.Generator().manual_seed(laconic.rank())
    for _ in range(steps):
        weights = torch.randn(5, 9, generator=draw), torch.randn(37, generator=draw)
        model(weights).backward()
        optimizer.step()
        optimizer.zero_grad()
        total += torch.cat([weights[1], weights[0].flatten()])
    tier = optimizer.session.partitions[0].tiers[1]
    memory = {name: state["error"].clone() for name, state in tier.memory.items()}
    applied = -torch.cat([model.b.detach(), model.a.detach().flatten()])
    return applied, total, memory


@pytest.mark.parametrize("schedule", ["wfbp", "wfbp(0)", "sequential"])
@pytest.mark.parametrize("outer", ["topk(0.1)+ef", "scaled_sign+ef"])
def test_what_was_applied_and_what_is_remembered_add_up(outer: str, schedule: str) -> None:
    """Each value is remembered by one member of a host, also after messages were formed anew: gradients do not arrive
    in the order of registration, which is seen in the first step."""
    text = f"[bsp / none / allreduce / {schedule}]@node > [{outer}]@site"
    workers = laconic.simulate(lambda: remembered(text, 6), HOSTS * MEMBERS, NETWORK).results
    errors, holders = torch.zeros(82), torch.zeros(82)
    for _, _, memory in workers:
        for name, error in memory.items():
            piece = piece_of(name)
            assert piece is not None
            start = {"b": 0, "a": 37}[piece[0]]
            errors[start + piece[1] : start + piece[2]] += error / HOSTS
            holders[start + piece[1] : start + piece[2]] += 1
    assert holders.tolist() == [HOSTS] * 82, "every value is remembered once in each host"
    mean = torch.stack([total for _, total, _ in workers]).mean(0)
    torch.testing.assert_close(workers[0][0] + errors, mean, rtol=1e-4, atol=1e-4)


def test_memory_moves_with_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first step messages are formed anew; every worker moves what it remembers of the one message."""
    moves: list[tuple[str, ...]] = []
    move = shard_memory.move_memory

    def noting(tier: Any, inner: Any, span: Span, like: Tensor) -> Any:
        if any(tier.sharded_with.get(name, span.names) != span.names for name in span.names):
            moves.append(span.names)
        return move(tier, inner, span, like)

    monkeypatch.setattr(tier_shards, "move_memory", noting)
    on_hosts("[bsp]@node > [topk(0.1)+ef]@site", 2)
    assert len(moves) == HOSTS * MEMBERS


def test_a_shard_of_a_shard_knows_its_control() -> None:
    spec = Span(10, (False, False, False), control=3)
    assert [spec.shard(rank, 4).numel for rank in range(4)] == [3] * 4
    assert [spec.shard(rank, 4).control for rank in range(4)] == [0, 0, 2, 3]  # with two zeros behind
    assert spec.shard(1, 4).shard(0, 2) == Span(2, (False,))


def test_pieces_are_ranges_of_tensors() -> None:
    specs = [TensorSpec("a[0]", (2, 3), torch.float32), TensorSpec("b", (1,), torch.float32)]
    assert [piece.name for piece in pieces_of(specs, 2, 7)] == ["a[0][2:6]", "b[0:1]"]
    assert [piece_of(piece.name) for piece in pieces_of(specs, 2, 7)] == [("a[0]", 2, 6), ("b", 0, 1)]
    assert piece_of("a[0]") is None and piece_of("weight") is None and piece_of("a@0-1") is None


@pytest.mark.parametrize(
    ("strategy", "shards"),
    [
        ("[bsp]@node > [bsp]@site", True),
        ("[fp16]@node > [topk+ef]@site", True),
        ("[bsp]@node > [accumulate(2)]@site", True),
        ("[bsp]@node > [flat+topk+ef]@site", True),
        ("[cast_bf16(rounding=stochastic)]@node > [bsp]@site", False),  # draws belong to whole tensors
        ("[topk+ef]@node > [bsp]@site", False),
        ("[bsp]@node > [power_sgd(2)+ef]@site", False),  # matrices
        ("[bsp]@node > [one_bit_sgd]@site", False),  # columns
        ("[bsp]@node > [sufficient_factors]@site", False),
    ],
)
def test_words_decide_who_crosses_in_shards(strategy: str, shards: bool) -> None:
    (inner, _), (outer, _) = Strategy.parse(strategy).levels  # type: ignore[attr-defined]
    assert isinstance(inner, Sentence) and isinstance(outer, Sentence)
    specs = [TensorSpec("w", (64, 32), torch.float32), TensorSpec("b", (64,), torch.float32, "bias")]
    assert tier_shards.sentences_shard(inner, [outer], specs) == shards


def test_a_shorter_format_inside_is_used_both_ways() -> None:
    (values, sent, _), *others = on_hosts("[fp16]@node > [bsp]@site", 3)
    plain, dense, _ = on_hosts("[bsp]@node > [bsp]@site", 3)[0]
    torch.testing.assert_close(values, plain, rtol=0, atol=1e-3)
    assert all(torch.equal(values, other) for other, *_ in others)
    assert sent < dense


def test_another_number_of_workers_is_refused(tmp_path: Any) -> None:
    """Memory of shards belongs to members of a host."""
    text = "[bsp]@node > [topk(0.1)+ef]@site"

    def saved() -> None:
        _, _, optimizer = trained(text, 2)
        laconic.checkpoint(tmp_path / "at", optimizer.session.model, optimizer)

    def resumed() -> None:
        _, _, optimizer = trained(text, 1)
        laconic.resume(tmp_path / "at", optimizer.session.model, optimizer)

    laconic.simulate(saved, HOSTS * MEMBERS, NETWORK)
    small = Network(4, (Level(1, 1e10, 1e-5), Level(2, 1e8, 1e-3)))
    with pytest.raises(ContractError, match=r"remembers something per tier.*resume with 8 workers"):
        laconic.simulate(resumed, 4, small)


def test_a_resumed_training_goes_on_to_the_bit(tmp_path: Any) -> None:
    """Also where memory has not yet moved to where messages have been formed anew."""
    text = "[bsp]@node > [topk(0.1)+ef]@site"

    def steps(model: Any, optimizer: Any, first: int, last: int) -> Tensor:
        for step in range(first, last):
            x = torch.randn(6, 5, generator=torch.Generator().manual_seed(100 * step + laconic.rank()))
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def started() -> Any:
        torch.manual_seed(3)
        model = Crossed()
        return laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), text)

    def whole() -> Tensor:
        model, optimizer = started()
        steps(model, optimizer, 0, 1)
        laconic.checkpoint(tmp_path / "at", model, optimizer)
        return steps(model, optimizer, 1, 4)

    def rest() -> Tensor:
        model, optimizer = started()
        laconic.resume(tmp_path / "at", model, optimizer)
        return steps(model, optimizer, 1, 4)

    first, second = (laconic.simulate(body, HOSTS * MEMBERS, NETWORK).results for body in (whole, rest))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_shapes_that_matter_are_found() -> None:
    def asked(text: str) -> bool:
        compressor: Compressor = Strategy.parse(text).compressor  # type: ignore[attr-defined]
        return takes_vectors(compressor, TensorSpec("w", (64, 32), torch.float32))

    assert asked("none") and asked("topk(0.01)+ef") and asked("int8+two_hop")
    assert not asked("power_sgd(2)") and not asked("one_bit_sgd")
