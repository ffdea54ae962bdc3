"""Explanations of a communication plan: what was merged and cut, what is hidden behind computing, what is exposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cost.comm_plan import PlanTrace, trace
from laconic.values.comm_plan import CommPlan
from laconic.values.timing import Timing


@dataclass(frozen=True)
class Explained:
    """A message of a plan: what it carries, and when it is in flight (from the start of backward)."""

    tensors: tuple[str, ...]
    nbytes: int
    is_piece: bool
    leaves_seconds: float
    arrives_seconds: float
    hidden: float  # the share of its time during which something computes


@dataclass(frozen=True)
class Explanation:
    """A communication plan with the predicted times of its messages."""

    plan: CommPlan
    trace: PlanTrace
    messages: tuple[Explained, ...]
    alone_seconds: float  # what the messages would take one after another, with nothing beside them
    period: int = 1  # one step in so many exchanges; the others only compute

    @property
    def hidden(self) -> float:
        """The share of communication that adds no time to the iteration."""
        return max(0.0, 1 - self.trace.exposed_seconds / self.alone_seconds) if self.alone_seconds else 1.0

    @property
    def mean_step_seconds(self) -> float:
        """The predicted time of a step in the mean over a period."""
        return self.trace.compute_seconds + self.trace.exposed_seconds / self.period

    def summary(self) -> str:
        """Return the explanation as one sentence."""
        plan, trace = self.plan, self.trace
        merged = sum(len(bucket) for bucket in plan.buckets if len(bucket) > 1)
        cut = len({m.bucket for m, explained in zip(plan.messages, self.messages, strict=True) if explained.is_piece})
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
        rare = f"one step in {self.period} exchanges, the others only compute: " if self.period > 1 else ""
        mean = f", {1e3 * self.mean_step_seconds:.1f} ms in the mean of all" if self.period > 1 else ""
        return (
            f"{rare}{', '.join(how)}: a step of {1e3 * trace.period_seconds:.1f} ms is predicted{mean}, "
            f"{1e3 * trace.compute_seconds:.1f} ms of it computing and {1e3 * trace.exposed_seconds:.1f} ms exposed; "
            f"{100 * self.hidden:.0f} % of {1e3 * self.alone_seconds:.1f} ms of communication is hidden"
        )


def explain(plan: CommPlan, arrival: Sequence[int], timing: Timing, period: int = 1) -> Explanation:
    """Predict the times of a plan, message by message, which is carried out in one step of every `period`."""
    iteration = trace(plan, arrival, timing)
    explained = []
    for message, begin, end in zip(plan.messages, iteration.begins, iteration.ends, strict=True):
        names = tuple(plan.tensors[i].name for i, _, _ in plan.carried(message))
        bucket_numel = sum(plan.tensors[i].numel for i in plan.buckets[message.bucket])
        idle = iteration.waits_between(begin, end)
        hidden = 1 - idle / (end - begin) if end > begin else 1.0
        explained.append(
            Explained(names, plan.nbytes(message), message.stop - message.start < bucket_numel, begin, end, hidden)
        )
    alone = sum(timing.seconds(plan, message) for message in plan.messages)
    return Explanation(plan, iteration, tuple(explained), alone, period)
