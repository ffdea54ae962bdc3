"""Asynchronous SGD: nobody waits for anybody."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from laconic.architecture.server.machine import Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import Section, State
from laconic.sync.server import ServerSync, take_over
from laconic.worker import Field


@technique("asp", aliases=["async", "asynchronous"], paper="Agarwal and Duchi, NIPS 2011")
@dataclass(frozen=True)
class ASP(ServerSync):
    """Pull, compute, push; the server steps its optimizer on every push as it comes.

    Each push is one worker's gradient, so that it steps with 1/N of the rate, which makes N of them the step of `bsp`;
    `share=1` steps with all of it. A push's staleness is how many updates came between its pull and it; `staleness`
    says what becomes of its rate: `ignore`, or `inverse` for 1/(1+tau).
    """

    staleness: str = knob("ignore", choices=("ignore", "inverse"), doc="what a stale gradient's rate becomes")
    share: float | None = knob(None, above=0, doc="of the rate for one push; default 1/N")

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        tau = max(store.version - push.version, 0)
        rate = 1 / (1 + tau) if self.staleness == "inverse" else 1.0
        store.apply(push.tensors, push.worker, rate * (1 / store.size if self.share is None else self.share))
        return {"staleness": tau}

    def stepping(self, section: Section, state: State) -> Generator[Any, Any, State]:
        (pushed, pulled) = yield [section.server.push(section.gradients, section.step), section.server.pull()]
        take_over(section, pulled)
        section.note(staleness=max(int(fields["staleness"]) for fields in pushed.fields))
        return state
