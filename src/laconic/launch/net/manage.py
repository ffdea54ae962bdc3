"""Networks come and go here: throwaway ones with a block of code, named ones with a command."""

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
from laconic.launch.net.state import Owner, State, load, load_all, locked

_COUNTER = itertools.count()
_POLITE = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def shaped(
    workers: int = 4,
    bits_per_second: float | None = 1e8,
    delay_seconds: float = 0.0,
    site_workers: int | None = None,
    uplink_bits_per_second: float | None = None,
) -> Iterator[ShapedNetwork]:
    """A network for the time of the block, taken down whatever happens in it: an error, Ctrl-C, a polite kill.

    With `site_workers`, so many neighbours are at one site, whose uplink has a rate of its own, and the delay is that
    between sites. After a SIGKILL, the next use of any function or command here takes down what was left.
    """
    with _leaving_politely():
        sites: dict[str, Any] = {"site_workers": site_workers, "uplink_bits_per_second": uplink_bits_per_second}
        state = _make(f"tmp-{os.getpid()}-{next(_COUNTER)}", workers, bits_per_second, delay_seconds, **sites)
        try:
            yield ShapedNetwork.of(state)
        finally:
            _demolish_undisturbed(state)


def up(
    name: str,
    workers: int = 4,
    bits_per_second: float | None = 1e8,
    delay_seconds: float = 0.0,
    links: Mapping[int, float] | None = None,
) -> ShapedNetwork:
    """A network that stands until `down`, whatever becomes of this process. `links` are places with another rate."""
    with _leaving_politely():
        return ShapedNetwork.of(_make(name, workers, bits_per_second, delay_seconds, stands=True, links=links))


def find(name: str) -> ShapedNetwork:
    """A network that is up."""
    with _tended():
        return ShapedNetwork.of(_existing(name))


def every() -> list[tuple[State, bool]]:
    """All networks that are up, throwaway ones too, and whether the process that each needs for its delay is there."""
    with _tended():
        return [(state, not state.delay_seconds or bool(cables.find_lines(state.token))) for state in load_all()]


def standing(name: str | None, everything: bool = False) -> list[str]:
    """Which networks somebody means who names one, all, or none because there is only one."""
    if name is not None:
        return [name]
    with _tended():
        names = [state.name for state in load_all() if state.owner is None]
    if len(names) > 1 and not everything:
        raise ShapedNetworkError(f"there are {len(names)} networks ({', '.join(names)}): name one, or say --all.")
    return names


def down(name: str) -> None:
    """Take a network down; processes that still live in it are left without one."""
    with _tended():
        state = _existing(name)
        if state.owner is not None:
            raise ShapedNetworkError(
                f"{name!r} belongs to process {state.owner.pid} and goes when that ends: end it instead."
            )
        demolish(state)


@contextmanager
def _tended() -> Iterator[None]:
    """Alone, and with nothing left of networks whose owner is dead."""
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
) -> State:
    own = links or {}
    for place in own.keys() - set(range(workers)):
        raise ShapedNetworkError(f"a network of {workers} places has no link {place}: they are 0 to {workers - 1}.")
    with _tended():
        token, rates = secrets.token_hex(3), tuple(own.get(place, bits_per_second) for place in range(workers))
        state = State(name, token, workers, delay_seconds, rates, owner=Owner.me(), **sites)
        if load(name) is not None:
            raise ShapedNetworkError(
                f"there is a network called {name!r} already: `laconic net down {name}`, or use another name."
            )
        state.save()
        try:
            build(state)
            if stands:
                cables.keep_line(state.token)
                state = replace(state, owner=None)
                state.save()
        except BaseException:
            with _undisturbed():
                demolish(state)
            raise
        return state


def _existing(name: str) -> State:
    state = load(name)
    if state is None:
        names = ", ".join(repr(other.name) for other in load_all() if other.owner is None) or "none"
        raise ShapedNetworkError(
            f"there is no network called {name!r} (there is: {names}): make it with `laconic net up --name {name}`."
        )
    return state


def _demolish_undisturbed(state: State) -> None:
    with _undisturbed(), locked():
        demolish(state)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end this thread wait until the block is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, *_POLITE))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _leaving_politely() -> Iterator[None]:
    """A polite kill unwinds the stack, as Ctrl-C does, unless the program has its own way of handling it."""
    mine = []
    if threading.current_thread() is threading.main_thread():
        mine = [number for number in _POLITE if signal.getsignal(number) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: object) -> None:
    sys.exit(128 + number)
