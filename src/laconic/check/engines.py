"""What every word must keep in a training: on virtual workers of any number and speed, and on real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from laconic.check.finding import DoesNotApply, Finding, look, smallest
from laconic.check.training import STEPS, Trained, read_digest, trained_virtually
from laconic.strategy import Sentence
from laconic.sync.base import Sync

WORKERS = (1, 2, 3, 4)
UNEQUAL = (1.0, 1.2, 1.5, 5.0)
LONGEST_SECONDS = 240


@dataclass(frozen=True)
class Trainings:
    """A sentence to train with, what its words declare, and a training of three workers that nothing disturbs."""

    sentence: Sentence

    @cached_property
    def rule(self) -> Sync:
        made: Sync = self.sentence.sync.make()
        return made

    @cached_property
    def collective(self) -> bool:
        return bool(self.sentence.architecture.make().collective)

    @cached_property
    def undisturbed(self) -> list[Trained]:
        return trained_virtually(self.sentence, 3)


def trains(subject: Trainings) -> str | None:
    """It trains among one, two, three and four virtual workers, of equal and of unequal speed."""

    def judge(case: tuple[int, tuple[float, ...]]) -> str | None:
        for worker in trained_virtually(subject.sentence, *case):
            if not bool(worker.finished.isfinite().all()):
                return "a parameter is not finite in the end"
        return None

    return smallest(map(_Case, [(n, speeds) for speeds in ((1.0,), UNEQUAL) for n in WORKERS]), judge)


class _Case(tuple[int, tuple[float, ...]]):
    def __str__(self) -> str:
        count, speeds = self
        who = "1 worker" if count == 1 else f"{count} workers"
        return who if len(set(speeds)) == 1 else f"{who}, step times {list(speeds[:count])}"


def keeps_replicas(subject: Trainings) -> str | None:
    """Workers hold the same parameters after every step, unless the rule declares `replicas_differ`, and after
    `laconic.finish` in any case."""
    rule, found = subject.rule, subject.undisturbed
    for step in range(0 if rule.replicas_differ or rule.races else len(found[0].parameters)):
        if other := _unlike([worker.parameters[step] for worker in found]):
            return f"3 workers: after step {step + 1}, worker {other} has other parameters than worker 0"
    if not rule.races and (other := _unlike([worker.finished for worker in found])):
        return f"3 workers: after laconic.finish, worker {other} has other parameters than worker 0"
    return None


def repeats(subject: Trainings) -> str | None:
    """Two runs end with the same bits, unless the rule declares that it `races`."""
    if subject.rule.races:
        raise DoesNotApply
    first, again = (_digests(trained_virtually(subject.sentence, 3, UNEQUAL)) for _ in range(2))
    return None if first == again else "3 workers: a second run of the same seed ends with other parameters"


def exchanges_when_it_declares(subject: Trainings) -> str | None:
    """The rule declares a `cadence`: it exchanges in every `period`-th step and in no other, unless in flight."""
    cadence = subject.rule.cadence
    if cadence is None or cadence.is_asynchronous or cadence.flight or cadence.period > STEPS:
        raise DoesNotApply
    sent = subject.undisturbed[0].sent_bytes
    declared = [step % cadence.period == 0 for step in range(1, STEPS + 1)]
    wrong = next((step for step, nbytes in enumerate(sent) if (nbytes > 0) is not declared[step]), None)
    if wrong is None:
        return None
    return f"3 workers: {sent[wrong]:.0f} bytes in step {wrong + 1}, with a period of {cadence.period}"


def exchanges_as_often_as_it_declares(subject: Trainings) -> str | None:
    """The rule declares `stretches` in place of a `cadence`: of some steps as many exchange as these say, but for a
    round of each that is cut off, unless in flight."""
    stretches = subject.rule.stretches(STEPS)
    if subject.rule.cadence is not None or not stretches:
        raise DoesNotApply
    if any(one.cadence.is_asynchronous or one.cadence.flight for one in stretches):
        raise DoesNotApply
    sent = subject.undisturbed[0].sent_bytes
    counted = sum(nbytes > 0 for nbytes in sent)
    declared = STEPS * sum(one.share / one.cadence.period for one in stretches)
    if abs(counted - declared) < max(1, len(stretches) - 1) and abs(sum(one.share for one in stretches) - 1) < 1e-6:
        return None
    return f"3 workers: {counted} of {STEPS} steps exchange, where the stretches say {declared:.3g}"


def resumes(subject: Trainings) -> str | None:
    """A run that is saved half-way and resumed ends as one that was never interrupted: all memory is in the state."""
    if subject.rule.races or not subject.collective:  # servers save themselves
        raise DoesNotApply
    whole = _digests(subject.undisturbed)
    with TemporaryDirectory() as folder:
        trained_virtually(subject.sentence, 3, save=Path(folder))
        resumed = _digests(trained_virtually(subject.sentence, 3, resume=Path(folder)))
    return None if whole == resumed else "3 workers: the resumed run ends with other parameters"


def resumes_with_fewer(subject: Trainings) -> str | None:
    """What three workers saved, two can resume."""
    if subject.rule.replicas_differ or not subject.collective:
        raise DoesNotApply
    with TemporaryDirectory() as folder:
        trained_virtually(subject.sentence, 3, save=Path(folder))
        found = trained_virtually(subject.sentence, 2, resume=Path(folder))
    finite = all(bool(worker.finished.isfinite().all()) for worker in found)
    return None if finite else "3 workers, then 2: a parameter is not finite in the end"


def is_the_same_on_processes(subject: Trainings) -> str | None:
    """Two real processes end with the bits of two virtual workers, unless the rule declares that it `races`."""
    command = [sys.executable, "-m", "laconic", "run", "--workers", "2", "--strategy", str(subject.sentence)]
    if not subject.collective:
        command += ["--servers", "1"]
    command += ["-m", "laconic.check.training"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    real = read_digest(done.stdout + done.stderr)
    if subject.rule.races or not subject.collective:
        return None
    virtual = trained_virtually(subject.sentence, 2)[0].digest
    return None if real == virtual else "2 workers: processes end with other parameters than virtual workers"


def _unlike(tensors: list[torch.Tensor]) -> int:
    """Return the first worker whose tensor is not worker 0's, or 0."""
    return next((rank for rank, tensor in enumerate(tensors) if not torch.equal(tensor, tensors[0])), 0)


def _digests(found: list[Trained]) -> list[str]:
    return [worker.digest for worker in found]


def findings(sentence: Sentence, real: bool) -> list[Finding]:
    """Return what trainings with a sentence show, on processes too where that is wanted."""
    checks: list[Callable[[Trainings], str | None]] = [
        trains,
        keeps_replicas,
        exchanges_when_it_declares,
        exchanges_as_often_as_it_declares,
        repeats,
        resumes,
        resumes_with_fewer,
    ]
    if real:
        checks.append(is_the_same_on_processes)
    return look(checks, Trainings(sentence))
