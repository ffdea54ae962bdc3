"""Streaming DiLoCo: fragments that take turns, 4 bits of each value, and nobody waits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import laconic
from laconic.errors import StrategyError
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.strategy import Strategy
from laconic.sync.streaming import fragments_of
from laconic.virtual.compute import Compute
from laconic.worker import Kind
from tests.sync.rounds import WORKERS, Make, Run, adamw, muon, net, sgd, simulated, timed, train

NAMES = tuple(name for name, _ in net().named_parameters())
SIZES = [p.numel() for p in net().parameters()]


@pytest.mark.long
@pytest.mark.technique("streaming_diloco", check=1)
@pytest.mark.parametrize("make", [sgd, adamw, muon])
def test_in_one_piece_and_at_once_it_is_diloco_to_the_bit(make: Make) -> None:
    streamed = simulated("streaming_diloco(period=4, fragments=1, overlap=0, merge=0) / none", 13, make)
    for mine, theirs in zip(streamed, simulated("diloco(period=4) / none", 13, make), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.path, theirs.path, strict=True))


class Odd(nn.Module):
    """Four layers with biases, none of whose tensors has an even number of values, and of unequal sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(7, 11), nn.Linear(11, 1))

    def forward(self, seed: int) -> torch.Tensor:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        return self.layers(x).square().sum()


def odd_bytes(strategy: str, steps: int) -> list[tuple[float, float]]:
    """Payload and control bytes that this worker sent in each step."""
    ledger, model = connect().ledger, Odd()
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-3), strategy)
    found, before = [], (ledger.sent_bytes(Kind.PAYLOAD), ledger.sent_bytes(Kind.CONTROL))
    for step in range(steps):
        model(100 * step + laconic.rank()).backward()
        optimizer.step()
        optimizer.zero_grad()
        after = ledger.sent_bytes(Kind.PAYLOAD), ledger.sent_bytes(Kind.CONTROL)
        found.append((after[0] - before[0], after[1] - before[1]))
        before = after
    return found


@pytest.mark.technique("streaming_diloco", check=2)
@pytest.mark.parametrize("knobs", [None, (6, 1, 0), (6, 2, 1), (6, 3, 2), (9, 4, 1)])
@pytest.mark.parametrize("workers", [3, 2, 5])
def test_every_parameter_is_sent_once_in_a_period_in_four_bits(
    knobs: tuple[int, int, int] | None, workers: int
) -> None:
    """All that is sent counts: of each tensor half a byte a value, rounded up, and its scale, four bytes; so the most
    of a step is 4·max n_f bits and at most four and a half bytes more for each tensor of that fragment. No control
    bytes. Without knobs, those of the named sentence."""
    period, fragments, overlap = knobs or (100, 4, 5)
    words = f"(period={period}, fragments={fragments}, overlap={overlap}) / e3m0" if knobs else "_4bit"
    named = list(Odd().named_parameters())
    parts, sizes = fragments_of(tuple(name for name, _ in named), fragments), [p.numel() for _, p in named]
    assert len(parts) == fragments and all(n % 2 for n in sizes)
    messages = [sum(-(-sizes[i] // 2) + 4 for i in part) for part in parts]
    largest = max(parts, key=lambda part: sum(sizes[i] for i in part))
    most = 4 * sum(sizes[i] for i in largest) / 8 + 4.5 * len(largest)
    steps = 2 * period
    turns = [[f for f in range(len(parts)) if (t + 1 - f * period // len(parts)) % period == 0] for t in range(steps)]
    sent = laconic.simulate(lambda: odd_bytes(f"streaming_diloco{words}", steps), workers).results
    for worker in sent:
        handed = [payload / (workers - 1) for payload, _ in worker]  # each of the others gets all of it
        assert handed == [sum(messages[f] for f in turn) for turn in turns]
        assert max(handed) <= most
        assert not any(control for _, control in worker)
    for begin in range(period + 1):  # any period of steps
        assert sorted(f for turn in turns[begin : begin + period] for f in turn) == list(range(len(parts)))


@pytest.mark.technique("streaming_diloco", check=2)
def test_every_parameters_point_moves_once_in_a_period() -> None:
    def moves() -> torch.Tensor:
        points: list[torch.Tensor] = []
        train(
            "streaming_diloco(period=6, fragments=3, overlap=2) / none",
            20,
            after=lambda run, step: points.append(run.remembered("point").clone()),
        )
        return (torch.stack(points[-13:]).diff(dim=0) != 0).sum(dim=0)

    for count in laconic.simulate(moves, WORKERS).results:
        assert count.eq(2).all()  # in the last twelve steps


@pytest.mark.long
@pytest.mark.technique("streaming_diloco", check=3)
@pytest.mark.parametrize("words", ["none", "e3m0"])
@pytest.mark.parametrize("overlap", [1, 3])
def test_nobody_waits_for_what_takes_no_longer_than_the_overlap(words: str, overlap: int) -> None:
    strategy, compute = f"streaming_diloco(period=12, fragments=3, overlap={overlap}) / {words}", Compute(0.4, 0.5, 0.1)
    parts = fragments_of(NAMES, 3)
    if words == "none":
        sent = max(8 * sum(SIZES[i] for i in part) for part in parts) * 2 * (WORKERS - 1) / WORKERS
    else:
        sent = max(sum(-(-SIZES[i] // 2) + 4 for i in part) for part in parts) * (WORKERS - 1)
    for slower, waits in ((0.5, False), (0.999, False), (1.001, True), (2.0, True)):
        rate = 8 * sent / (slower * overlap)  # the largest fragment takes this share of the overlap
        seconds, waited = timed(strategy, 30, Network.flat(WORKERS, rate), compute)
        assert (waited > 1e-6) == waits
        assert (seconds > 30 + 1e-6) == waits


def test_merging_keeps_a_share_of_what_was_done_meanwhile() -> None:
    """The same worker with merge 0 stands on the point, with merge 1 where it would have been alone."""
    strategy = "streaming_diloco(period=5, fragments=1, overlap=2, merge={}) / none"
    dropped, half, alone = (simulated(strategy.format(share), 7) for share in (0, 0.5, 1))
    for a, b, c in zip(dropped, half, alone, strict=True):
        assert torch.equal(a.path[-1], a.remembered("point"))
        torch.testing.assert_close(b.path[-1], (a.path[-1] + c.path[-1]) / 2, rtol=0, atol=1e-12)


def test_fragments_are_whole_layers_dealt_out_in_turn() -> None:
    names = ("character.weight", *(f"layers.{n}.{part}" for n in range(4) for part in ("qkv.weight", "mlp.0.bias")))
    assert fragments_of(names, 2) == [[0, 3, 4, 7, 8], [1, 2, 5, 6]]
    assert fragments_of(names, 99) == [[0], [1, 2], [3, 4], [5, 6], [7, 8]]
    assert fragments_of(("layer1.0.conv1.weight", "layer1.0.conv2.weight", "fc.bias", "scale"), 9) == [[0, 1], [2], [3]]


def test_an_overlap_of_a_whole_period_is_refused() -> None:
    with pytest.raises(StrategyError, match="write overlap=9 or less"):
        Strategy.parse("streaming_diloco(period=10, overlap=10)")


@pytest.mark.long
def test_workers_differ_only_by_what_they_did_since() -> None:
    """With one worker and no outer momentum the point follows; the four-bit sentence of the paper trains as well."""
    runs: list[Run] = simulated("streaming_diloco(period=6, fragments=3, overlap=2) / e3m0", 60, adamw)
    points = [run.remembered("point") for run in runs]
    assert all(torch.equal(point, points[0]) for point in points)
    assert all((run.path[-1] - points[0]).norm() < points[0].norm() for run in runs)
