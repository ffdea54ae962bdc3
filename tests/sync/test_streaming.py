"""Streaming DiLoCo: fragments that take turns, 4 bits of each value, and nobody waits."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.errors import StrategyError
from laconic.network.network_tree import Network
from laconic.strategy import Strategy
from laconic.sync.streaming import fragments_of
from laconic.virtual.compute import Compute
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


@pytest.mark.technique("streaming_diloco", check=2)
@pytest.mark.parametrize(("fragments", "overlap"), [(1, 0), (2, 1), (3, 2), (9, 1)])
def test_every_parameter_is_sent_once_in_a_period_in_four_bits(fragments: int, overlap: int) -> None:
    """Beside the 4 bits of each value, a tensor's scale takes 4 bytes."""
    period, parts = 6, fragments_of(NAMES, fragments)
    strategy = f"streaming_diloco(period={period}, fragments={fragments}, overlap={overlap}) / e3m0"
    runs = simulated(strategy, 3 * period)
    codes = [sum(-(-SIZES[i] // 2) for i in part) for part in parts]
    most = -(-4 * max(sum(SIZES[i] for i in part) for part in parts) // 8)
    turns = [[f for f in range(len(parts)) if (t + 1 - f * period // len(parts)) % period == 0] for t in range(18)]
    for run in runs:
        handed = [sent / (WORKERS - 1) for sent in run.sent_bytes]  # each of the others gets all of it
        assert handed == [sum(codes[f] + 4 * len(parts[f]) for f in turn) for turn in turns]
        assert max(n - 4 * sum(len(parts[f]) for f in turn) for n, turn in zip(handed, turns, strict=True)) <= most
    for begin in range(2 * period):  # any period of steps
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
