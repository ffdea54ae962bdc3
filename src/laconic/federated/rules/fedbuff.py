"""FedBuff: clients report whenever they are done, and the server steps when its buffer is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from laconic.federated.rule import Report, Rule, Server, weighted_sum
from laconic.registry import knob, technique


@technique("fedbuff", paper="Nguyen et al., AISTATS 2022")
@dataclass(frozen=True)
class FedBuff(Rule):
    """Step with every K reports, from whichever version of the model they started; `fedbuff(10)` waits for ten.

    So many clients as `at_work` train at any time: one that has reported is replaced at once. A report that is s
    versions old counts 1/√(1 + s), and the sum is divided by K. Nobody waits for slow clients; fast ones take part more
    often, which nothing corrects.
    """

    asynchronous: ClassVar[bool] = True

    at_work: int = knob(100, low=1, doc="clients that train at any time")
    server_rate: float = knob(1.0, low=0.0, doc="what the mean of the buffer is multiplied by")
    discounts: bool = knob(True, doc="whether older reports count less")

    @property
    def concurrency(self) -> int:
        return self.at_work

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        ages = [server.version - report.version for report in reports]
        weights = [(1 + age) ** -0.5 if self.discounts else 1.0 for age in ages]
        return server.next(server.parameters + self.server_rate / len(reports) * weighted_sum(reports, weights))
