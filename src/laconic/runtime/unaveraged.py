"""A warning at the end of a training in which local steps were never followed by an exchange.

A rule with a long period sends nothing in a run that is shorter: each worker has then trained alone, and only
`laconic.finish` would have averaged them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from weakref import finalize

from laconic.runtime.session import Session
from laconic.worker import Kind, Ledger


@dataclass
class Exchanges:
    """What is known of a training whose workers hold models of their own, when its optimizer is gone."""

    strategy: str
    period: int
    ledger: Ledger
    before_bytes: float
    steps: int = 0

    @classmethod
    def watch(cls, optimizer: object, session: Session) -> Exchanges:
        """Warn when this optimizer is dropped or the process ends, on one worker, if models were never averaged."""
        period = max(tier.sync.period for partition in session.partitions for tier in partition.tiers)
        found = cls(str(session.strategy), period, session.worker.ledger, _payload_bytes(session.worker.ledger))
        if session.arrangement.replicas_differ and session.group.size > 1 and session.group.rank == 0:
            finalize(optimizer, found.warn)
        return found

    def warn(self) -> None:
        """Print a sentence if steps were made and nothing was exchanged, unless an error ended the script."""
        if not self.steps or _payload_bytes(self.ledger) > self.before_bytes or hasattr(sys, "last_type"):
            return
        shorter = f", or choose a period of at most that (it is {self.period})" if self.period > self.steps else ""
        print(
            f"laconic: the workers' models were never averaged: `{self.strategy}` exchanged nothing in {self.steps} "
            f"steps, and each worker trained alone. Call laconic.finish(model, optimizer) after training{shorter}.",
            file=sys.stderr,
        )


def _payload_bytes(ledger: Ledger) -> float:
    return ledger.sent_bytes(Kind.PAYLOAD) + ledger.received_bytes(Kind.PAYLOAD)
