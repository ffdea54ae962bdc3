"""All-reduces that are chosen by probing, and chosen again when the network has changed.

The first exchange of a group probes its network, and the first of every class of sizes (a power of two) chooses. After
every `WINDOW` exchanges members tell each other how long these took, in one small all-reduce, and probe and choose
again if that has changed by more than `DRIFT`. One member chooses and sends all others what it chose, so that all carry
out the same program.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from laconic.collective.cheapest import Choice, cheapest, read_choice, synthesised_for
from laconic.collective.chunk_memory import coded_bytes
from laconic.collective.generators import make_program
from laconic.collective.live_probe import Measured
from laconic.collective.ragged import ReadByHost
from laconic.collective.shared_wait import SharedWait
from laconic.worker import Coding, Communication, Group

WINDOW = 16
"""After so many exchanges members compare how long these took: 8 bytes for each, in an all-reduce."""

DRIFT = 1.5
"""By this factor the time of exchanges over their price must have changed for a new probe."""

CHOOSERS: dict[str, Callable[[Measured, float], str]] = {"auto": cheapest, "synthesised": synthesised_for}
"""Ways to choose, by name."""


class Adaptive:
    """One member's part of the choice for a group; all members start the same exchanges in the same order."""

    def __init__(self, group: Group, how: str) -> None:
        self._group, self._choose = group, CHOOSERS[how]
        self._measured: Measured | None = None
        self._texts: dict[int, str] = {}  # by class of sizes
        self._asked: set[int] = set()
        self._decision: SharedWait | None = None
        self._drift = Drift()
        self.probes = 0

    @classmethod
    def of(cls, group: Group, how: str) -> Adaptive:
        """Return the one of a group, which is made where there is none yet."""
        made: Adaptive = group.remembered.setdefault(f"collective {how}", None) or cls(group, how)
        group.remembered[f"collective {how}"] = made
        return made

    def choice(self, nbytes: int) -> Choice:
        """Return what is chosen for vectors of so many bytes; some exchange has asked for it."""
        return read_choice(self._texts[size_class(nbytes)], self._group.size)

    def sum(self, flat: Tensor, control: float = 0.0, coding: Coding | None = None) -> Communication[Tensor]:
        """Sum every member's flat tensor, in place, by what is chosen for the size of its messages. Where that is the
        transport's own all-reduce, which decodes nothing, encoded ones go around a ring."""
        group = self._group
        nbytes = flat.nbytes if coding is None else sum(coded_bytes(coding, [1.0] * group.size))
        wanted = size_class(nbytes)
        if group.size == 1 or not flat.numel():
            return flat
        number = self._drift.begin()
        if number % WINDOW == 0 or wanted not in self._asked:
            self._asked.add(wanted)
            compares = number > 0 and number % WINDOW == 0
            self._decision = SharedWait(self._decide(self._decision, compares, flat.device))
        if self._decision is not None:
            yield from self._decision.finish()
        chosen, begin = self.choice(nbytes), group.clock_seconds()
        if chosen.program is None and coding is None:
            yield group.all_reduce(flat, control=control)
        else:
            yield from group.run(chosen.program or make_program("ring", group.size), flat, control, coding)
        self._drift.end(number, (group.clock_seconds() - begin) / chosen.seconds(nbytes))
        return flat

    def _decide(self, before: SharedWait | None, compares: bool, device: torch.device) -> Communication[None]:
        """Probe where that is needed, and choose for all classes of sizes that were asked for and have no choice."""
        if before is not None:
            yield from before.finish()
        kept = dict(self._texts)
        if compares:
            times = self._drift.times().to(device)
            times = yield ReadByHost(self._group.all_reduce(times, op="max", control=1.0))
            if self._drift.has_drifted(times.cpu()):
                self._measured = None
        if self._measured is None:
            self._measured = yield from self._group.measure(device)
            self.probes += 1
            self._texts.clear()
        for wanted in sorted(self._asked - self._texts.keys()):
            own = self._choose(self._measured, 2.0**wanted) if self._group.rank == 0 else ""
            self._texts[wanted] = yield from _told(own, self._group, device)
        if kept and compares and any(self._texts[wanted] != text for wanted, text in kept.items()):
            self._drift.begin_anew()


class Drift:
    """How long exchanges took over their prices, in windows of so many, and whether that has changed.

    No member has the sum before the last one has joined, so that the shortest time of all members is free of waiting
    for late ones. Times are compared with those of the first window after the choice rather than with prices, since
    exchanges that are in flight at once, or wait for the end of a backward pass, take longer than their prices too. If
    a probe has not led to another choice, twice as many windows must have changed before the next one.
    """

    def __init__(self) -> None:
        self._started, self._ended = 0, dict[int, float]()
        self._usual: float | None = None
        self._changed, self._patience = 0, 1

    def begin(self) -> int:
        """Return the number of the exchange that starts."""
        self._started += 1
        return self._started - 1

    def end(self, number: int, ratio: float) -> None:
        """Note that an exchange has ended after so many times its price."""
        self._ended[number] = ratio

    def times(self) -> Tensor:
        """Return what this member measured in the last whole window, negative, for an all-reduce by the largest."""
        end = (self._started - 1) // WINDOW * WINDOW
        found = [-self._ended.get(number, math.inf) for number in range(end - WINDOW, end)]
        self._ended = {number: ratio for number, ratio in self._ended.items() if number >= end}
        return torch.tensor(found, dtype=torch.float64)

    def has_drifted(self, times: Tensor) -> bool:
        """Return whether it is time to probe, from the largest of all members' times: the same at all."""
        there = -times[times > -math.inf]
        if not len(there):
            return False
        ratio = float(there.median())
        if self._usual is None:
            self._usual = ratio
        changed = max(ratio, self._usual) > DRIFT * min(ratio, self._usual)
        self._changed = self._changed + 1 if changed else 0
        if self._changed < self._patience:
            return False
        self._usual, self._changed, self._patience = None, 0, 2 * self._patience
        return True

    def begin_anew(self) -> None:
        """Note that something else was chosen."""
        self._patience = 1


def size_class(nbytes: int) -> int:
    """Return the class of vectors of so many bytes: those of class k have up to 2ᵏ, and more than half of that."""
    return max(nbytes - 1, 1).bit_length()


def _told(text: str, group: Group, device: torch.device) -> Communication[str]:
    """Return the text of the first member at all."""
    own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([own.numel()], device=device)
    length = yield ReadByHost(group.broadcast(length, 0, control=1.0))
    sent = own.to(device) if group.rank == 0 else torch.empty(int(length), dtype=torch.uint8, device=device)
    sent = yield ReadByHost(group.broadcast(sent, 0, control=1.0))
    return bytes(sent.cpu().numpy()).decode()
