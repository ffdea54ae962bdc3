"""A place in which a process can run: a network namespace with one interface."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from laconic.launch.net.kernel import ShapedNetworkError, entered


@dataclass(frozen=True)
class Namespace:
    """The network namespace of one worker or of the hub, with its interface and address."""

    namespace: str
    interface: str
    address: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs the same command inside the namespace."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def entered(self) -> AbstractContextManager[None]:
        """Return a context in which this thread is in the namespace; what it starts and connects there stays there."""
        return entered(self.namespace)


def interface_bytes(name: str) -> tuple[int, int]:
    """Return the bytes that an interface of this thread's namespace has sent and received, headers included."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        interface, _, numbers = line.partition(":")
        if interface.strip() == name:
            counted = numbers.split()
            return int(counted[8]), int(counted[0])
    raise ShapedNetworkError(f"there is no interface {name!r} here: `ip link` lists those there are.")
