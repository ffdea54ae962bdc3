"""Every acknowledged write counts once, in order, and none is lost, whatever happens to messages and processes."""

from __future__ import annotations

import pytest

from tests.rpc.world import World

HISTORIES, PARTS, ACTIONS = 10_000, 10, 40


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_random_orders_keep_every_write_once(part: int) -> None:
    for seed in range(part, HISTORIES, PARTS):
        world = World(seed)
        try:
            world.run(actions=ACTIONS)
            world.settle()
            world.check()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error


def test_histories_are_eventful() -> None:
    """The random histories contain many crashes and restarts."""
    crashes = restarts = 0
    for seed in range(200):
        world = World(seed)
        world.run(actions=ACTIONS)
        crashes += world.inbox.epoch - 1
        restarts += len(world.past)
    assert crashes > 60 and restarts > 60
