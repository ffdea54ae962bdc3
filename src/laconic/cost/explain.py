"""Why a plan is as it is: what was merged and cut, what is hidden behind computing, and what is exposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cost.comm_plan import Trace, trace
from laconic.values.comm_plan import CommPlan
from laconic.values.timing import Timing


@dataclass(frozen=True)
class Explained:
    """A message: what it carries, and when it is on its way (from the start of backward)."""

    tensors: tuple[str, ...]
    nbytes: int
    is_piece: bool
    leaves_seconds: float
    arrives_seconds: float
    hidden: float  # the share of its time in which something computes


@dataclass(frozen=True)
class Explanation:
    """A plan with its prices."""

    plan: CommPlan
    trace: Trace
    messages: tuple[Explained, ...]
    alone_seconds: float  # what the messages would take one after another, with nothing beside them

    @property
    def hidden(self) -> float:
        """The share of communication that costs no time."""
        return max(0.0, 1 - self.trace.exposed_seconds / self.alone_seconds) if self.alone_seconds else 1.0

    def summary(self) -> str:
        """One sentence for people."""
        plan, seen = self.plan, self.trace
        merged = sum(len(bucket) for bucket in plan.buckets if len(bucket) > 1)
        cut = len({m.bucket for m, told in zip(plan.messages, self.messages, strict=True) if told.is_piece})
        count = "1 message" if len(plan.messages) == 1 else f"{len(plan.messages)} messages"
        how = [f"{len(plan.tensors)} tensors in {count} ({merged} merged, {cut} cut)"]
        if plan.halves and not plan.gated:
            how.append("each worker the server of its share: reduce-scatter beside backward, then all-gather")
        elif plan.halves:
            how.append("reduce-scatter beside backward and all-gather beside the next forward pass")
        elif plan.gated:
            how.append("beside backward and the next forward pass")
        elif all(message.after for message in plan.messages):
            how.append("after backward")
        else:
            how.append("beside backward")
        if plan.credit_bytes is not None:
            how.append("the most urgent first")
        if plan.postponed:
            how.append(f"weights of the first {len(plan.postponed)} last")
        if plan.plain:
            how.append(f"{len(plan.plain)} tensors not compressed, which is faster")
        return (
            f"{', '.join(how)}: a step of {1e3 * seen.period_seconds:.1f} ms is predicted, "
            f"{1e3 * seen.compute_seconds:.1f} ms of it computing and {1e3 * seen.exposed_seconds:.1f} ms exposed; "
            f"{100 * self.hidden:.0f} % of {1e3 * self.alone_seconds:.1f} ms of communication is hidden"
        )


def explain(plan: CommPlan, arrival: Sequence[int], timing: Timing) -> Explanation:
    """Price a plan message by message."""
    seen = trace(plan, arrival, timing)
    told = []
    for message, begin, end in zip(plan.messages, seen.begins, seen.ends, strict=True):
        names = tuple(plan.tensors[i].name for i, _, _ in plan.carried(message))
        whole = sum(plan.tensors[i].numel for i in plan.buckets[message.bucket])
        idle = seen.waits_between(begin, end)
        hidden = 1 - idle / (end - begin) if end > begin else 1.0
        told.append(Explained(names, plan.nbytes(message), message.stop - message.start < whole, begin, end, hidden))
    return Explanation(plan, seen, tuple(told), sum(timing.seconds(plan, message) for message in plan.messages))
