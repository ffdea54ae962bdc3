"""Servers on a shaped network: each in a place of its own, or with a worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from laconic.launch import net
from laconic.launch.launch_context import LaunchContext
from laconic.launch.request import LaunchError, Request
from laconic.launch.server_run_processes import build_processes
from laconic.values.run_config import RunConfig
from tests.real.launching import START_SECONDS, Launched

WHERE = """
import os
from laconic.network.interfaces import address_towards
print("I am at", address_towards(os.environ["MASTER_ADDR"]))
"""


@pytest.mark.long
def test_each_server_has_a_place_of_its_own(name: str, launch: Callable[..., Launched], tmp_path: Path) -> None:
    shaped = net.up(name, workers=3, links={1: 1e7})
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    run = launch("--net", name, "--workers", "2", "--servers", "1", script=script)
    assert run.exit_code(START_SECONDS) == 0, run.console
    message = [(run.folder / "logs" / f"{log}.log").read_text() for log in ("rank-0", "rank-1", "server-0")]
    assert message == [f"I am at {place.address}\n" for place in shaped.places]


def test_or_shares_a_workers(name: str, tmp_path: Path) -> None:
    shaped = net.up(name, workers=2)
    request = Request(command=(__file__,), workers=2, servers=3, net=name, colocate=True)
    members = build_processes(request, LaunchContext("10.77.0.254", "here", tmp_path, 1, 20.0), RunConfig(), 0, 1)
    places = {member.name: [p.namespace for p in shaped.places].index(member.command[8]) for member in members}
    assert places == {"server 0": 0, "server 1": 1, "server 2": 0, "rank 0": 0, "rank 1": 1}


def test_a_network_without_room_for_the_servers_is_refused(name: str) -> None:
    net.up(name, workers=3)
    with pytest.raises(LaunchError, match=r"need 4 places, .* has 3: .*--colocate"):
        Request(command=(__file__,), workers=2, servers=2, net=name)
    Request(command=(__file__,), workers=2, servers=2, net=name, colocate=True)


def test_links_may_have_rates_of_their_own(name: str) -> None:
    net.up(name, workers=3, bits_per_second=1e8, links=dict([net.read_link("2=10Mbit")]))
    (state,) = [state for state, _ in net.every() if state.name == name]
    assert state.bits_per_second == (1e8, 1e8, 1e7)
    for wrong in ("2", "x=10Mbit"):
        with pytest.raises(net.ShapedNetworkError, match="PLACE=RATE"):
            net.read_link(wrong)
    with pytest.raises(net.ShapedNetworkError, match="no link 3"):
        net.up(f"{name}-b", workers=3, links={3: 1e7})
