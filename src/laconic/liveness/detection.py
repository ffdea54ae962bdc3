"""Heartbeats and losses as plain values, without threads, sockets or a clock.

Every observer judges by its *own* monotonic clock, from changes it sees itself, so that hosts need no common time. The
launcher and the workers share these values, so that all print the same sentence, whoever notices a loss first.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from laconic.reading import Source

EXIT_LOST = 75
"""Exit code of a rank that ends because another was lost (EX_TEMPFAIL: the same command may work next time)."""

EXIT_REFUSED = 78
"""Exit code of a process whose script asked for something that laconic refuses (EX_CONFIG): starting it again is of no
use."""

REFUSED = "laconic refused to go on"

START_SECONDS = 300.0
"""How long a rank may take to its first beat: loading data differs between hosts far more than training does."""

SILENT = b"-"  # the content of a slot before its rank has written to it
UNKNOWN = "a machine not known yet"


@dataclass(frozen=True)
class Lost:
    """The first loss of an attempt. `final` means that the run was ended on purpose, so that no launcher restarts
    it."""

    ranks: tuple[int, ...]
    machine: str
    cause: str
    advice: str
    final: bool = False

    def headline(self) -> str:
        """Return a sentence that says which ranks were lost, where, and why."""
        who, verb = name_ranks(self.ranks) or "the launcher", "were" if len(self.ranks) > 1 else "was"
        return f"{who} on {self.machine} {verb} lost: {self.cause}."

    def sentence(self) -> str:
        """Return the headline and what to do about it, on one line."""
        return f"{self.headline()} {self.advice}".rstrip()

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, data: bytes | str) -> Lost:
        source = Source("the run's store", "note of a lost rank", "another program writes to it; start the run again")
        return source.value(source.json(data), cls)


@dataclass(frozen=True)
class Beat:
    """One rank's heartbeat on the board: a counter that grows while the rank is alive, and the rank's host."""

    count: int  # 0: not started yet
    machine: str
    done: bool = False

    def encode(self) -> str:
        return f"{'done' if self.done else self.count} {self.machine}"

    @classmethod
    def decode(cls, data: bytes) -> Beat:
        if data == SILENT:
            return cls(0, UNKNOWN)
        word, _, machine = data.decode().partition(" ")
        return cls(1, machine, done=True) if word == "done" else cls(int(word), machine)


class Judge:
    """Decides from successive readings of all beats which ranks have fallen silent.

    Time in which the observer itself did not look (it was stopped, or the store did not answer) is not held against
    any rank: a host that was suspended as a whole wakes up without reporting the others as lost.
    """

    def __init__(
        self,
        size: int,
        rank: int | None,
        limit_seconds: float,
        interval_seconds: float,
        now: float,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.silence_limit_seconds = silence_limit(limit_seconds, interval_seconds)
        self._interval_seconds, self._start_seconds = interval_seconds, start_seconds
        self._rank = rank
        self._looked = now
        self.beats = [Beat(0, UNKNOWN)] * size
        self._changed = [now] * size

    def look(self, beats: Sequence[Beat], now: float) -> Lost | None:
        """Take in one reading of all beats, and return the loss it shows, if any."""
        unobserved = max(0.0, now - self._looked - 3 * self._interval_seconds)
        self._looked = now
        for rank, beat in enumerate(beats):
            self._changed[rank] = now if beat != self.beats[rank] else self._changed[rank] + unobserved
        self.beats = list(beats)
        silent = {rank: now - self._changed[rank] for rank in self._watched()}
        if not any(self._is_lost(rank, seconds) for rank, seconds in silent.items()):
            return None
        # A host that is cut off silences all its ranks at about the same time: name them together.
        ranks = tuple(r for r, seconds in silent.items() if self._is_lost(r, seconds / 0.75))
        return self._describe(ranks, max(silent[r] for r in ranks))

    def _watched(self) -> list[int]:
        return [r for r, beat in enumerate(self.beats) if r != self._rank and not beat.done]

    def _is_lost(self, rank: int, silent_seconds: float) -> bool:
        return silent_seconds > (self.silence_limit_seconds if self.beats[rank].count else self._start_seconds)

    def _describe(self, ranks: tuple[int, ...], seconds: float) -> Lost:
        machine = ", ".join(sorted({self.beats[r].machine for r in ranks}))
        if not any(self.beats[r].count for r in ranks):
            return Lost(
                ranks, UNKNOWN, f"no first heartbeat came within {seconds:.0f} s of the start",
                "Look at that rank's log: it has not reached `laconic.distribute` (or `laconic.rank`).",
            )  # fmt: skip
        return Lost(
            ranks, machine, f"no heartbeat came for {seconds:.1f} s",
            "A process is frozen, or a machine or link is down; if it was only busy, give a longer --heartbeat.",
        )  # fmt: skip


def interval(limit_seconds: float) -> float:
    """Return the seconds between heartbeats: a tenth of the limit, so that a loss is noticed in time, at most one."""
    return min(1.0, limit_seconds / 10)


def silence_limit(limit_seconds: float, interval_seconds: float) -> float:
    """Return the silence that counts as loss: the limit less the delays of seeing the last beat and of the next
    look."""
    return limit_seconds - 2 * interval_seconds


def describe_exit(code: int) -> tuple[str, str]:
    """Return the cause and the advice for a process that ended with `code`, as `Popen.returncode` gives it."""
    if code == -signal.SIGKILL:
        return "it was killed by SIGKILL", (
            "If nobody killed it, the machine ran out of memory: see `dmesg`, use a smaller batch or fewer workers."
        )
    if code == EXIT_REFUSED:
        return REFUSED, "The last line of its log says why."
    if code < 0:
        return f"it was ended by {_signal_name(-code)}", "The end of its log shows where."
    return f"it ended with exit code {code}", "Its log holds the traceback."


def name_ranks(ranks: Sequence[int]) -> str:
    """Return 'rank 2', 'ranks 0 and 3' or 'ranks 4 to 7', or an empty text for no ranks."""
    if len(ranks) < 2:
        return f"rank {ranks[0]}" if ranks else ""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def lost_file(folder: str | Path, prefix: str) -> Path:
    """Return the file of the run folder in which a loss is noted, for a launcher that cannot reach the store any
    more."""
    return Path(folder) / f"lost-{prefix.rsplit('/', 1)[-1]}.json"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
