"""When a sync rule exchanges, as a plain value: with the bytes that compression and architecture declare, its price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Cadence:
    """One exchange of the whole model's gradients or parameters by every worker, every `period` steps.

    `overlaps`: gradients leave while the last of these steps' backward passes computes them, in the messages that the
    schedule plans; otherwise everything leaves in one message after the step, and all wait for it. `pace` is whose
    speed counts: in "common" all workers step together; "bounded" lets one run ahead for a while, so that in the long
    run all are as fast as the slowest; with "own" nobody waits for another. The last two push to servers and pull.

    What does not overlap with backward may leave in equal `parts`, at different steps of the period, and each may be
    in `flight` for so many steps before anybody waits for it.
    """

    period: int = 1
    overlaps: bool = True
    pace: Literal["common", "bounded", "own"] = "common"
    parts: int = 1
    flight: int = 0

    @property
    def is_asynchronous(self) -> bool:
        return self.pace != "common"


@dataclass(frozen=True)
class Stretch:
    """Steps of a phase, not necessarily one after the other, in which its rule keeps one cadence.

    `share` is theirs of the phase's steps; where messages are `exact` the sentence's compression is left out.
    """

    cadence: Cadence
    share: float = 1.0
    exact: bool = False
