"""Elastic rounds as state machines: kills at random points and in every phase, false suspicions, late joiners."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from laconic.architecture.elastic.exchange import ByParts, CodedRing, MakeExchange
from laconic.architecture.elastic.matchmaker import Matchmaker
from laconic.architecture.elastic.seats import Arrangement, Grid, RandomGroups
from laconic.collective.chunk_memory import cuts
from laconic.compression.bucket_means import BucketMeans
from laconic.errors import ContractError
from laconic.worker import ActorMessage
from tests.architecture.elastic.world import MATCHMAKER, Worker, World, check, normals, rounds
from tests.compression.table import compressor, meet

RING = CodedRing.around(BucketMeans())
ARRANGEMENTS: list[tuple[Arrangement, MakeExchange, int]] = [
    (Grid(1), ByParts, 40),
    (Grid(2), ByParts, 40),
    (Grid(3), ByParts, 40),
    (RandomGroups(2), ByParts, 40),
    (Grid(1), RING, 6),
]


def run_with_kills(arrangement: Arrangement, make: MakeExchange, seed: int, suspicions: bool) -> tuple[World, int]:
    """Run rounds among a few workers, and kill up to all but one at random points, some of whom return; or let some be
    taken for lost that are not."""
    draw = random.Random(seed)
    size, count = draw.randint(2, 9), draw.randint(1, 4)
    world = World(arrangement, size, rounds(count, normals(draw.choice([1, 5, 33]), seed)), seed, make)
    kills = happened = 0
    for moment in sorted(draw.randint(0, 60 * size) for _ in range(draw.randint(1, size - 1))):
        while happened < moment and world.step():
            happened += 1
        victims = sorted(world.waiting, key=lambda worker: worker.rank)
        if len(victims) < 2:
            break
        victim = draw.choice(victims)
        if suspicions and draw.random() < 0.5:
            world.suspect(victim)
            continue
        world.kill(victim)
        kills += 1
        if draw.random() < 0.3:
            world.start(victim.rank, life=1 + int(victim.address.split(".")[1]))
    return world, kills


@pytest.mark.parametrize("suspicions", [False, True])
@pytest.mark.parametrize(("arrangement", "make", "seeds"), ARRANGEMENTS)
def test_kills_at_random_points(arrangement: Arrangement, make: MakeExchange, seeds: int, suspicions: bool) -> None:
    """Several hundred in all, over the arrangements: nobody hangs, and no mean is wrong."""
    kills = 0
    for seed in range(seeds):
        world, killed = run_with_kills(arrangement, make, seed, suspicions)
        check(world)
        kills += killed
    assert kills >= seeds / 2


@pytest.mark.parametrize(("make", "seeds"), [(ByParts, 4), (RING, 1)])
def test_a_kill_at_every_step_of_two_rounds(make: MakeExchange, seeds: int) -> None:
    """Before the round, while parts are sent, while they are gathered, between result and commit, and between rounds:
    the others end both rounds, together, and the killed one is in a mean only as long as it took part."""
    left, counted = set(), set()
    for seed in range(seeds):
        for moment in range(200):
            world = World(Grid(1), 3, rounds(2, normals(7, seed)), seed, make)
            if not all(world.step() for _ in range(moment)) or world.workers["1.0"] not in world.waiting:
                break
            world.kill(world.workers["1.0"])
            groups = dict(check(world))
            assert set(groups) == {0, 1}
            assert all({"0.0", "2.0"} <= set(members) for members in groups.values())
            assert "1.0" in groups[0] or "1.0" not in groups[1]
            for at, members in groups.items():
                (counted if "1.0" in members else left).add(at)
    assert left == counted == {0, 1}


def until(world: World, worker: Worker, holds: str) -> None:
    """Go on until a member is in a phase."""
    in_phase = {
        "grouped": lambda m: m._attempt is not None,
        "ready": lambda m: m._attempt is not None and m._attempt.reported,
    }[holds]
    while not in_phase(worker.member):
        assert world.step()


def test_who_is_in_the_mean() -> None:
    """One that has died before its group formed is not; one that dies in an attempt is not, unless all who are left
    hold the whole result by then."""
    waited = 0
    for seed in range(10):
        world = World(Grid(1), 4, rounds(1, normals(5)), seed)
        world.kill(world.workers["3.0"])
        assert check(world) == [(0, ("0.0", "1.0", "2.0"))]

        world = World(Grid(1), 4, rounds(1, normals(5)), seed)
        until(world, world.workers["3.0"], "grouped")
        world.channels["3.0", "0.0"].clear()  # its part for this one is lost with it
        world.kill(world.workers["3.0"])
        assert check(world) == [(0, ("0.0", "1.0", "2.0"))]

        world = World(Grid(1), 4, rounds(1, normals(5)), seed)
        for worker in list(world.workers.values()):
            until(world, worker, "ready")
        world.kill(world.workers["3.0"])
        world.channels["3.0", MATCHMAKER].clear()
        silent = world.unnoticed.pop()
        world.settle()  # all others have reported, and the matchmaker may wait for the one that is dead
        waited += not any(worker.got for worker in world.workers.values())
        world.unnoticed.append(silent)
        assert check(world) == [(0, ("0.0", "1.0", "2.0", "3.0"))]
    assert waited > 2


def test_a_worker_that_enters_late_begins_with_the_others_mean() -> None:
    for seed in range(10):
        world = World(Grid(1), 3, rounds(6, normals(5)), seed)
        while not world.workers["0.0"].got:
            assert world.step()
        late = world.start(9)
        groups = dict(check(world))
        first = late.got[0][0]
        assert 1 <= first < 6 and all(("9.0" in members) == (at >= first) for at, members in groups.items())
        before = next(outcome.mean for at, _, outcome in world.workers["0.0"].got if at == first - 1)
        torch.testing.assert_close(late.got[0][1], before + normals(5)(9, 0), rtol=0, atol=0)


def test_who_was_taken_for_lost_keeps_its_value_and_comes_back() -> None:
    for seed in range(10):
        world = World(Grid(1), 3, rounds(4, normals(5)), seed)
        until(world, world.workers["1.0"], "grouped")
        world.suspect(world.workers["1.0"])
        groups = dict(check(world))
        got = world.workers["1.0"].got
        assert set(groups) == {0, 1, 2, 3} and "1.0" in groups[3]
        assert sum(at < 0 for at, _, _ in got) <= 1  # none where the round was committed before


@pytest.mark.technique("intellect1_int8_ring", check=3)
@pytest.mark.parametrize("seed", range(3))
def test_a_node_killed_between_rounds_is_left_out_of_the_next_ring(seed: int) -> None:
    """The mean over the live nodes has the bits of a ring of these alone, around the same codec."""
    world = World(Grid(1), 5, rounds(1, normals(301, seed), leaves=False), seed, RING)
    first = check(world)
    assert first == [(0, ("0.0", "1.0", "2.0", "3.0", "4.0"))]
    lengths = [end - begin for begin, end in pairwise(cuts([1.0] * 5, 301))]
    for r in range(5):  # of the sums all but its own chunk, of the totals all but its neighbour's
        assert world.sent_bytes[f"{r}.0"] == 2 * 301 - lengths[r] - lengths[(r + 1) % 5] + 2 * 4 * 1024
    world.kill(world.workers["2.0"])
    world.begin(rounds(2, normals(301, seed)))
    check(world)
    live = ("0.0", "1.0", "3.0", "4.0")
    results = [world.workers[member].got[-1] for member in live]
    assert all(at == 1 and outcome.members == live for at, _, outcome in results)
    alone = meet(compressor("bucket_means+per_hop"), [world.inputs[member, 1] for member in live])
    assert all(torch.equal(outcome.mean, alone[0].result) for _, _, outcome in results)


@pytest.mark.parametrize("make", [ByParts, RING])
@pytest.mark.parametrize("numel", [1, 3, 64, 301])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_vectors_of_any_length_among_any_number(make: MakeExchange, size: int, numel: int) -> None:
    world = World(Grid(1), size, rounds(1, normals(numel)), 0, make)
    assert len(check(world)) == 1
    if make is ByParts and numel % size == 0:
        assert {world.sent_bytes[f"{r}.0"] for r in range(size)} == {2 * (size - 1) * numel // size * 4}


def test_low_precision_is_summed_in_float32() -> None:
    world = World(Grid(1), 3, rounds(1, lambda rank, _: torch.tensor([1.0 if rank else 256.0], dtype=torch.bfloat16)))
    world.settle()
    for worker in world.workers.values():
        (_, _, outcome) = worker.got[0]
        assert outcome.mean.dtype == torch.bfloat16 and outcome.mean.tolist() == [86.0]


def test_what_makes_no_sense_is_refused() -> None:
    matchmaker = Matchmaker(Grid(2), range(2))
    with pytest.raises(ContractError, match="takes no 'dance'"):
        matchmaker.write(0, ActorMessage("dance"))
    with pytest.raises(ContractError, match="names a address"):
        matchmaker.write(0, ActorMessage("enter"))
    with pytest.raises(ContractError, match="from a snapshot"):
        matchmaker.restore(matchmaker.state())
    assert matchmaker.write(5, ActorMessage("join", {"round": 0})).kind == "expelled"  # it never entered
