"""Elastic rounds between processes, some of which are killed: nobody hangs, and no mean is wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from tests.architecture.elastic.processes import Death, Told, Trials
from tests.architecture.elastic.world import plain_mean

pytestmark = pytest.mark.xdist_group("elastic_processes")


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    made = Trials(tmp_path_factory.mktemp("elastic"))
    yield made
    made.close()


def check(told: dict[str, Told], count: int, exact: bool = True) -> dict[int, tuple[str, ...]]:
    """Check that all survivors went through all rounds with the same bits, which are the mean of the members that they
    name, and return these by round."""
    survivors = [name for name, one in told.items() if not one.killed]
    assert survivors and all(told[name].ended for name in survivors)
    found: dict[int, tuple[str, ...]] = {}
    for name in survivors:
        assert max(told[name].got) == count - 1
        for at, (members, mean) in told[name].got.items():
            assert found.setdefault(at, members) == members and name in members
            assert torch.equal(mean, told[members_alive(members, survivors)].got[at][1])
            expected = plain_mean([told[member].own[at] for member in members])
            if exact:
                assert torch.equal(mean, expected)
            else:
                torch.testing.assert_close(mean, expected, atol=0.2, rtol=0.1)
    return found


def members_alive(members: tuple[str, ...], survivors: list[str]) -> str:
    return next(member for member in members if member in survivors)


@pytest.mark.parametrize("exchange", ["parts", "ring"])
def test_a_process_killed_in_a_round(trials: Trials, exchange: str) -> None:
    """One dies while it sends its parts, and one before it has entered."""
    told = trials.run([None, Death(2, handed_over=1), None, Death(0)], count=2, exchange=exchange)
    groups = check(told, 2, exact=exchange == "parts")
    assert sum(one.killed for one in told.values()) == 2
    names = sorted(told)
    assert set(groups[1]) == {names[0], names[2]}


@pytest.mark.long
@pytest.mark.parametrize("exchange", ["parts", "ring"])
def test_fifty_kills_in_all_phases(trials: Trials, exchange: str) -> None:
    """Some of four processes die at random messages of three rounds: before they handle one, or after they have handed
    over some of those that they then send."""
    draw, kills, trial = random.Random(exchange), 0, 0
    while kills < 25:
        trial += 1
        deaths: list[Death | None] = [None] * 4
        for place in draw.sample(range(4), draw.randint(1, 3)):
            deaths[place] = Death(draw.randint(1, 20), draw.choice([None, 0, 1, 2]))
        told = trials.run(deaths, count=3, exchange=exchange)
        check(told, 3, exact=exchange == "parts")
        kills += sum(one.killed for one in told.values())
    print(f"{kills} kills in {trial} runs of four processes")
