"""Step 4, the pipeline level: the messages of a job's iteration, and how they overlap with its computing."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.sending import Sending
from laconic.cost.comm_plan import predicted_seconds
from laconic.errors import ClusterError
from laconic.schedule.base import Schedule
from laconic.schedule.sequential import Sequential
from laconic.strategy import Sentence, Strategy
from laconic.values.comm_plan import CommPlan
from laconic.values.price import Price
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing

BACKWARD = 2 / 3  # of an iteration's computing


class Arrangement(NamedTuple):
    """An iteration of a job that is alone on its slots and links.

    - `plan`: its messages.
    - `computing`, `sending`: the seconds of both, if they took turns.
    - `seconds`: how long it takes as it is arranged.
    """

    plan: CommPlan
    computing: float
    sending: float
    seconds: float


@lru_cache
def schedule_of(text: str | None) -> Schedule:
    """Return the schedule that a word names; none: all is sent when all is computed.

    - `text`: a schedule with its arguments, such as `wfbp(1MiB)`.
    """
    if text is None:
        return Sequential()
    sentence = Strategy.parse(text)
    if not isinstance(sentence, Sentence) or sentence != Sentence.of(sentence.schedule):
        raise ClusterError(f'"{text}" says more than when a job sends; give a schedule alone, such as wfbp(1MiB)')
    made: Schedule = sentence.schedule.make()
    return made


def arrange(text: str | None, job: Job, grant: Grant, cluster: Cluster) -> Arrangement | None:
    """Return the iteration of a job that sends, whose layers take as long each; None for one that sends nothing.

    Jobs are data-parallel, so that their pipeline has one stage; a message takes in proportion to its bytes, and no
    start-up time. What stages there could be is the matter of `laconic.parallel`.

    - `text`: a schedule with its arguments; none: all is sent when all is computed.
    - `job`: the job.
    - `grant`: what it holds.
    - `cluster`: whose slots these are.
    """
    progress = job.progress
    if not isinstance(progress, Sending):
        return None
    computing, sending = progress.seconds(grant, cluster)
    return _arranged(text, progress.layers, max(round(progress.nbytes), 4), computing, sending) if sending else None


@lru_cache(4096)
def _arranged(text: str | None, layers: int, nbytes: int, computing: float, sending: float) -> Arrangement:
    numel = max(nbytes // (4 * layers), 1)
    tensors = [TensorSpec(f"layer{i}", (numel,), torch.float32) for i in range(layers)]
    arrival = list(reversed(range(layers)))
    price = Price(0.0, sending / (4 * numel * layers))
    forward, backward = (computing * share / layers for share in (1 - BACKWARD, BACKWARD))
    timing = Timing((forward,) * layers, (backward,) * layers, price)
    plan = schedule_of(text).plan(tensors, arrival, timing)
    return Arrangement(plan, computing, sending, predicted_seconds(plan, arrival, timing))
