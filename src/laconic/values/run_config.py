"""The settings that `laconic run` passes to the workers it starts, as one value in one environment variable.

`LACONIC_RUN` is internal to the launcher and its workers, not a way for people to configure anything: another heartbeat
or folder is chosen on the command line. Under plain `torchrun` the variable is absent and the defaults hold.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache

from laconic.reading import Source

VARIABLE = "LACONIC_RUN"
STEPS = "steps"
"""The name of the folder, within the run folder, that holds recorded steps."""
TRAFFIC = "traffic"
"""The name of the folder, within the run folder, in which processes leave what they sent and how long it took."""


@dataclass(frozen=True)
class RunConfig:
    """One run's settings as its workers see them."""

    strategy: str | None = None  # the sentence given on the command line; None: the script's own
    folder: str | None = None  # the run folder on this host; None: nothing is written
    heartbeat_seconds: float = 20.0  # a rank that is silent for this long is lost
    threads: int = 1  # intra-op threads per worker: one, so that sums do not depend on the machine
    dry_run: bool = False  # report what the sentence would cost, train nothing
    workers: int | None = None  # all workers of the run; a dry run has no process group to ask
    nodes: int = 1  # hosts; a dry run cannot count them either
    targets: Mapping[str, float] = field(default_factory=dict)  # metric name to the value to reach
    trace: bool = False  # every rank writes a timeline to the run folder
    gate: str | None = None  # a comparison's Unix socket: report there, and wait for its permission to go on
    record_steps: bool = False  # time and bytes of every step go to the run folder
    stop_after: int | None = None  # with recorded steps: end the script after so many
    profile_to: str | None = None  # profiling run: measure a profile, write it here, end the script
    profile_steps: int = 48  # steps that a profiling run times
    profile_as: int | None = None  # profile as one of so many workers; None: as many as there are
    profile_words: Sequence[str] | None = None  # chains of compression to time; None: every registered word
    net_bits_per_second: float | None = None  # the configured rate of the network, for the profile
    net_delay_seconds: float = 0.0
    servers: int = 0  # processes that only host parameter servers
    role: str = "worker"  # or "server", in one of these
    index: int = 0  # which of the servers this one is
    keys_file: str | None = None  # where this run's keys are
    life: int = 0  # how often this process was started before; much larger where a run was continued
    resume: bool = False  # servers continue from the snapshots that an earlier run left in the folder
    heartbeat_pipe: int | None = None  # in a run with servers: the descriptor that takes this process's heartbeats
    slowness: Sequence[float] = field(default_factory=list)  # by worker, cycled: factors of computing time
    stragglers: Sequence[float] = field(default_factory=list)  # a probability, and then a factor
    alone: bool = False  # train without communication, to measure what a step costs without it

    @classmethod
    def current(cls) -> RunConfig:
        """Return the settings that the launcher passed, or the defaults when `laconic run` did not start this
        process."""
        text = os.environ.get(VARIABLE)
        return cls() if text is None else _read(text)

    def to_env(self) -> dict[str, str]:
        """Return the environment from which a worker reads this value with `current()`."""
        return {VARIABLE: json.dumps(asdict(self))}

    def heartbeat_prefix(self) -> str:
        """Return the prefix of this attempt's heartbeats in the run's store: a restarted run must not read its past."""
        return attempt_prefix(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))


@cache  # a thousand virtual workers ask for the same text
def _read(text: str) -> RunConfig:
    instead = "it is set by the launcher for its own workers and by nobody else, so unset it."
    source = Source(VARIABLE, "setting of `laconic run`", instead)
    return source.value(source.json(text), RunConfig)


def attempt_prefix(attempt: int) -> str:
    """Return the store prefix of an attempt, counted from 0; launcher and workers must agree on it."""
    return f"laconic/{attempt}"
