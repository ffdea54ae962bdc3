"""Where a process can live: a network namespace with one interface."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from laconic.launch.net.kernel import ShapedNetworkError, entered


@dataclass(frozen=True)
class Namespace:
    """One worker's place, or the hub's."""

    namespace: str
    interface: str
    address: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The same command, run inside."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def entered(self) -> AbstractContextManager[None]:
        """This thread inside; what it starts and connects there stays there."""
        return entered(self.namespace)


def interface_bytes(name: str) -> tuple[int, int]:
    """What an interface of this thread's namespace has sent and received, headers included."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        interface, _, numbers = line.partition(":")
        if interface.strip() == name:
            counted = numbers.split()
            return int(counted[8]), int(counted[0])
    raise ShapedNetworkError(f"there is no interface {name!r} here: `ip link` lists those there are.")
