"""Create, find and remove shaped networks: throwaway ones for a block of code, named ones for a command."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from laconic.launch.net import cables
from laconic.launch.net.build import build, demolish
from laconic.launch.net.kernel import ShapedNetworkError, require_means
from laconic.launch.net.network import ShapedNetwork
from laconic.launch.net.state import NetworkState, Owner, load, load_all, locked

_COUNTER = itertools.count()
_TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def shaped(
    workers: int = 4,
    bits_per_second: float | None = 1e8,
    delay_seconds: float = 0.0,
    site_workers: int | None = None,
    uplink_bits_per_second: float | None = None,
) -> Iterator[ShapedNetwork]:
    """Provide a network for the time of the block and remove it whatever happens: an error, Ctrl-C, SIGTERM, SIGHUP.

    With `site_workers`, each site has that many neighbouring workers and an uplink with a rate of its own; the delay is
    then that between sites. After a SIGKILL, the next use of any function or command here removes what was left.
    """
    with _exiting_on_termination():
        sites: dict[str, Any] = {"site_workers": site_workers, "uplink_bits_per_second": uplink_bits_per_second}
        state = _make(f"tmp-{os.getpid()}-{next(_COUNTER)}", workers, bits_per_second, delay_seconds, **sites)
        try:
            yield ShapedNetwork.of(state)
        finally:
            _demolish_with_signals_deferred(state)


def up(
    name: str,
    workers: int = 4,
    bits_per_second: float | None = 1e8,
    delay_seconds: float = 0.0,
    links: Mapping[int, float] | None = None,
) -> ShapedNetwork:
    """Create a network that stays until `down`, even after this process; `links` gives some workers another rate."""
    with _exiting_on_termination():
        return ShapedNetwork.of(_make(name, workers, bits_per_second, delay_seconds, stands=True, links=links))


def find(name: str) -> ShapedNetwork:
    """Return the network of this name, which must be up."""
    with _locked_and_cleaned():
        return ShapedNetwork.of(_existing(name))


def every() -> list[tuple[NetworkState, bool]]:
    """Return all networks that are up, throwaway ones too, each with whether the delay line it needs is running."""
    with _locked_and_cleaned():
        return [(state, not state.delay_seconds or bool(cables.find_delay_lines(state.token))) for state in load_all()]


def standing(name: str | None, everything: bool = False) -> list[str]:
    """Return the networks that are meant: the one named, all of them, or the only one where no name is given."""
    if name is not None:
        return [name]
    with _locked_and_cleaned():
        names = [state.name for state in load_all() if state.owner is None]
    if len(names) > 1 and not everything:
        raise ShapedNetworkError(f"there are {len(names)} networks ({', '.join(names)}): name one, or say --all.")
    return names


def down(name: str) -> None:
    """Remove a network; processes that still run in it are left without one."""
    with _locked_and_cleaned():
        state = _existing(name)
        if state.owner is not None:
            raise ShapedNetworkError(
                f"{name!r} belongs to process {state.owner.pid} and is removed when that ends: end the process instead."
            )
        demolish(state)


@contextmanager
def _locked_and_cleaned() -> Iterator[None]:
    """Hold the lock, with networks whose owner is dead removed first."""
    require_means()
    with locked():
        for state in load_all():
            if state.is_abandoned:
                demolish(state)
        yield


def _make(
    name: str,
    workers: int,
    bits_per_second: float | None,
    delay_seconds: float,
    stands: bool = False,
    links: Mapping[int, float] | None = None,
    **sites: Any,
) -> NetworkState:
    own = links or {}
    for place in own.keys() - set(range(workers)):
        raise ShapedNetworkError(f"a network of {workers} places has no link {place}: they are 0 to {workers - 1}.")
    with _locked_and_cleaned():
        token, rates = secrets.token_hex(3), tuple(own.get(place, bits_per_second) for place in range(workers))
        state = NetworkState(name, token, workers, delay_seconds, rates, owner=Owner.me(), **sites)
        if load(name) is not None:
            raise ShapedNetworkError(
                f"there is a network called {name!r} already: `laconic net down {name}`, or use another name."
            )
        state.save()
        try:
            build(state)
            if stands:
                cables.keep_delay_line(state.token)
                state = replace(state, owner=None)
                state.save()
        except BaseException:
            with _signals_deferred():
                demolish(state)
            raise
        return state


def _existing(name: str) -> NetworkState:
    state = load(name)
    if state is None:
        names = ", ".join(repr(other.name) for other in load_all() if other.owner is None) or "none"
        raise ShapedNetworkError(
            f"there is no network called {name!r} (there is: {names}): make it with `laconic net up --name {name}`."
        )
    return state


def _demolish_with_signals_deferred(state: NetworkState) -> None:
    with _signals_deferred(), locked():
        demolish(state)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer signals that would end this thread until the block is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, *_TERMINATION_SIGNALS))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _exiting_on_termination() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind the stack, as Ctrl-C does, unless the program handles them itself."""
    mine = []
    if threading.current_thread() is threading.main_thread():
        mine = [number for number in _TERMINATION_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)
