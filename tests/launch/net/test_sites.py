"""Sites: neighbours are near each other, and far from the others by their uplink's rate and delay."""

from __future__ import annotations

import time

import pytest

from laconic.launch import net
from laconic.launch.net import ShapedNetworkError
from laconic.launch.net.state import load
from tests.launch.net.test_net import Remains, asked, bound, deliver, rate_of

DELAY_SECONDS = 0.05


@pytest.mark.parametrize("delay_seconds", [0.0, DELAY_SECONDS])
def test_rate_and_delay_lie_between_the_sites(allowed: None, remains: Remains, delay_seconds: float) -> None:
    with net.shaped(4, None, delay_seconds, site_workers=2, uplink_bits_per_second=2e8) as shaped:
        state = load(shaped.name)
        assert state is not None and [rate_of(place) for place in shaped.places] == [None] * 4
        for site in state.sites:
            for end in state.uplink(site):
                [bucket] = asked("tc", shaped.hub, "qdisc", "show", "dev", end)
                assert bucket["options"]["rate"] * 8 == 2e8  # type: ignore[index]
        sockets = [bound(place) for place in shaped.places]
        first, neighbour, *far = sockets
        for other in (neighbour, *far):
            assert deliver(first, other, b"hello") == deliver(other, first, b"hello") == {b"hello"}
        begin = time.monotonic()
        deliver(first, far[0], b"there")
        assert time.monotonic() - begin >= delay_seconds
        for socket in sockets:
            socket.close()
    assert not remains(shaped.name)


def test_a_site_of_everybody_is_refused(allowed: None) -> None:
    with pytest.raises(ShapedNetworkError, match="give 1 to 3"), net.shaped(4, site_workers=4):
        pass
