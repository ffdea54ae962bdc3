"""A shaped network that is up: where its workers run, and what can be done to their links."""

from __future__ import annotations

from dataclasses import dataclass, replace

from laconic.launch.net import build
from laconic.launch.net.kernel import ShapedNetworkError
from laconic.launch.net.place import Namespace, interface_bytes
from laconic.launch.net.state import NetworkState, check_rate, load, locked
from laconic.units import bits_per_second


@dataclass(frozen=True)
class ShapedNetwork:
    """Places joined by a bridge in the hub, which has an address too, so that a launcher can run there."""

    name: str
    token: str
    places: tuple[Namespace, ...]
    hub: Namespace
    delay_seconds: float  # one way, between two workers, or two sites where there are any

    @classmethod
    def of(cls, state: NetworkState) -> ShapedNetwork:
        return cls(state.name, state.token, state.places, state.hub, state.delay_seconds)

    @property
    def namespace_prefix(self) -> str:
        """What a worker's namespace begins with; a dash and the worker's number follow."""
        return self.hub.namespace.removesuffix("-hub")

    @property
    def interface_prefix(self) -> str:
        """What a worker's interface begins with; the worker's number follows."""
        return self.places[0].interface.removesuffix("0")

    def limit(self, bits_per_second: float | None, worker: int | None = None) -> None:
        """Set the rate of both directions of one worker's link, or of all; None removes the limit."""
        check_rate(bits_per_second)
        chosen = range(len(self.places)) if worker is None else (self._checked(worker),)
        with locked():
            state = self._state()
            rates = tuple(bits_per_second if n in chosen else rate for n, rate in enumerate(state.bits_per_second))
            state = replace(state, bits_per_second=rates)
            for n in chosen:
                build.limit(state, n)
            state.save()

    def cut(self, worker: int) -> None:
        """Disconnect a worker: nothing passes in either direction, while its address and rate stay."""
        self._switch(worker, is_up=False)

    def restore(self, worker: int) -> None:
        """Connect a worker again that `cut` disconnected."""
        self._switch(worker, is_up=True)

    def counters(self, worker: int) -> tuple[int, int]:
        """Return the bytes that a worker's interface has sent and received, headers included."""
        place = self.places[self._checked(worker)]
        with place.entered():
            return interface_bytes(place.interface)

    def _switch(self, worker: int, is_up: bool) -> None:
        self._checked(worker)
        with locked():
            state = self._state()
            build.switch(state, worker, is_up)
            others = [n for n in state.cut if n != worker]
            replace(state, cut=tuple(others if is_up else sorted([*others, worker]))).save()

    def _state(self) -> NetworkState:
        state = load(self.name)
        if state is None or state.token != self.token:
            raise ShapedNetworkError(
                f"the network {self.name!r} has been taken down: `laconic net up --name {self.name}`."
            )
        return state

    def _checked(self, worker: int) -> int:
        if not 0 <= worker < len(self.places):
            raise ShapedNetworkError(f"{self.name!r} has no worker {worker}: they are 0 to {len(self.places) - 1}.")
        return worker


def read_link(text: str) -> tuple[int, float]:
    """Return a place and the rate of its link in bits per second from a text such as "3=10Mbit"."""
    place, equals, rate = text.partition("=")
    if not equals or not place.strip().isdecimal():
        raise ShapedNetworkError(f"--link {text!r} is not PLACE=RATE: write, for example, --link 3=10Mbit.")
    return int(place), bits_per_second(rate)
