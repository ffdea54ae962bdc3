"""The byte ledger: every byte a worker sent or received, by kind and operation."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from laconic.worker import Kind


@dataclass
class Ledger:
    """Counts bytes where they are handed to the transport, so that a claim is checked against what was really said."""

    _sent: dict[tuple[str, Kind], float] = field(default_factory=lambda: defaultdict(float))
    _received: dict[tuple[str, Kind], float] = field(default_factory=lambda: defaultdict(float))

    def record(self, operation: str, kind: Kind, sent_bytes: float, received_bytes: float) -> None:
        self._sent[operation, kind] += sent_bytes
        self._received[operation, kind] += received_bytes

    def sent_bytes(self, kind: Kind | None = None) -> float:
        return sum(n for (_, k), n in self._sent.items() if kind is None or k == kind)

    def received_bytes(self, kind: Kind | None = None) -> float:
        return sum(n for (_, k), n in self._received.items() if kind is None or k == kind)

    def by_operation(self) -> dict[str, float]:
        totals: dict[str, float] = defaultdict(float)
        for (operation, _), n in self._sent.items():
            totals[operation] += n
        return dict(totals)
