"""The byte ledger: every byte a worker sent or received, by kind and operation."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from laconic.worker import Kind


@dataclass
class Ledger:
    """A counter of bytes at the point where they are handed to the transport, so that claims are checked against what
    was really sent."""

    _sent: dict[tuple[str, Kind], float] = field(default_factory=lambda: defaultdict(float))
    _received: dict[tuple[str, Kind], float] = field(default_factory=lambda: defaultdict(float))

    def record(self, operation: str, sent_bytes: float, received_bytes: float, control: float = 0.0) -> None:
        """Add an operation's bytes; `control` is the share of them that is not payload."""
        for kind, share in ((Kind.PAYLOAD, 1 - control), (Kind.CONTROL, control)):
            if share:
                self._sent[operation, kind] += share * sent_bytes
                self._received[operation, kind] += share * received_bytes

    def sent_bytes(self, kind: Kind | None = None) -> float:
        return _total(self._sent, kind)

    def received_bytes(self, kind: Kind | None = None) -> float:
        return _total(self._received, kind)

    def by_operation(self, kind: Kind | None = None) -> dict[str, float]:
        """Return the bytes sent, by operation."""
        totals: dict[str, float] = defaultdict(float)
        for (operation, sent_as), n in self._sent.items():
            if kind in (None, sent_as):
                totals[operation] += n
        return dict(totals)


def _total(counts: dict[tuple[str, Kind], float], kind: Kind | None) -> float:
    """Sum and round to a millionth of a byte, so that shares of one message add up exactly."""
    return round(sum(n for (_, k), n in counts.items() if kind is None or k == kind), 6)
