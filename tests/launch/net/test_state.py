"""The file that describes a network, and the sentences of refusal: none of this needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from laconic.errors import LaconicError
from laconic.launch.net import ShapedNetworkError, state
from laconic.launch.net.kernel import require_means
from laconic.launch.net.state import NetworkState, Owner
from laconic.units import bits_per_second, seconds, write_rate

MADE = NetworkState("lab", "0a1b2c", 3, 0.025, (1e8, None, 1e7), cut=(1,), owner=Owner(12, 345))


def test_a_state_reads_back_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FOLDER", tmp_path)
    MADE.save()
    assert state.load("lab") == MADE
    assert state.load_all() == [MADE]
    MADE.forget()
    assert state.load("lab") is None and not list(tmp_path.iterdir())


def test_a_spoilt_state_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FOLDER", tmp_path)
    (tmp_path / "lab.json").write_text("{}")
    with pytest.raises(ShapedNetworkError, match=r"lab\.json does not describe a network"):
        state.load("lab")


def test_names_fit_into_the_kernels_fifteen_characters() -> None:
    large = NetworkState("a" * 31, "0a1b2c", 250, 0.0, (None,) * 250)
    ports = [large.port(worker) for worker in range(250)]
    interfaces = [large.hub.interface, *ports, *(place.interface for place in large.places)]
    assert max(map(len, interfaces)) <= 15 and len(set(interfaces)) == 501
    assert len({large.hub.address, *(place.address for place in large.places)}) == 251


def test_an_owner_is_not_a_later_process_with_its_number() -> None:
    me = Owner.me()
    assert me.lives
    assert not Owner(me.pid, me.started - 1).lives
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not Owner(child.pid, 0).lives  # what is left of it until its parent asks does not count
    child.wait()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "a b"}, "no name for a network"),
        ({"workers": 0}, "ask for 1 to 250"),
        ({"delay_seconds": -1.0}, "makes no sense"),
        ({"bits_per_second": (5.0,)}, "cannot be kept"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is(wrong: dict[str, object], message: str) -> None:
    facts: dict[str, object] = {"name": "lab", "token": "0", "workers": 1, "delay_seconds": 0.0} | wrong
    with pytest.raises(ShapedNetworkError, match=message):
        NetworkState(**{"bits_per_second": (None,)} | facts)  # type: ignore[arg-type]


def test_without_root_the_virtual_engine_is_named() -> None:
    command = [sys.executable, "-c", "from laconic.launch import net; net.every()"]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("`setpriv`, to become somebody else, is not here")
        command = ["setpriv", "--reuid", "65534", "--clear-groups", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Permission denied" in done.stderr:
        pytest.skip("other users may not read this Python")
    sentence = done.stderr.splitlines()[-1]
    assert "needs root" in sentence and "laconic run --engine virtual --network 100Mbit" in sentence


def test_without_iproute2_the_virtual_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("the lack of root is noticed first")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ShapedNetworkError, match=r"needs `ip` and `tc`.* install iproute2, .*--engine virtual"):
        require_means()


@pytest.mark.parametrize("rate", [1e5, 1e7, 2.5e8, 1e9, 1e11])
def test_a_rate_reads_back_as_it_is_shown(rate: float) -> None:
    assert bits_per_second(write_rate(rate)) == rate
    assert bits_per_second(rate) == rate


def test_what_is_no_rate_or_time_is_refused() -> None:
    with pytest.raises(LaconicError, match="no rate"):
        bits_per_second("1.2.3Mbit")
    with pytest.raises(LaconicError, match='has no unit: write "100Mbit"'):
        bits_per_second("100")
    for nothing in ("0Mbit", 0, -1e6, float("nan"), float("inf")):
        with pytest.raises(LaconicError, match="moves nothing"):
            bits_per_second(nothing)
    for never in ("-5ms", -1.0, float("nan"), float("inf")):
        with pytest.raises(LaconicError, match="makes no sense"):
            seconds(never)
    with pytest.raises(LaconicError, match="no time"):
        seconds("3 parsec")
