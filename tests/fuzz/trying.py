"""Try spoilt inputs: each is accepted or refused in a sentence, in time, and leaves nothing half-written."""

from __future__ import annotations

import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from laconic.errors import LaconicError
from tests.fuzz.mutators import spoilt

SECONDS = 20  # after which an input counts as a hang


class Hang(BaseException):
    """No answer in time; not an `Exception`, so that no reader takes it for one of its own."""


@dataclass(frozen=True)
class Subject:
    """A reader or a command: its valid inputs as files of a folder, and a function that reads that folder."""

    name: str
    files: Mapping[str, bytes]
    read: Callable[[Path], object]
    valid: bool = True  # as they are; otherwise they are refused


@dataclass
class Finding:
    """An input that was neither accepted nor refused in a sentence."""

    subject: str
    file: str
    content: bytes
    what: str
    where: str


@dataclass
class Tally:
    """What became of a subject's inputs."""

    accepted: int = 0
    refused: int = 0
    findings: list[Finding] = field(default_factory=list)
    sentences: Counter[str] = field(default_factory=Counter)


def try_inputs(subject: Subject, folder: Path, count: int, draw: Random, tally: Tally) -> None:
    """Read so many spoilt inputs, each with one file changed, and note what happens."""
    write(folder, subject.files)
    if subject.valid:
        subject.read(folder)
    expected = set(_within(folder))
    for _ in range(count):
        name = draw.choice(list(subject.files))
        changed = spoilt(subject.files[name], draw)
        (folder / name).write_bytes(changed)
        with _noted(subject, name, changed, tally), _alarm():
            subject.read(folder)
            tally.accepted += 1
        left = set(_within(folder)) - expected
        if left:
            tally.findings.append(Finding(subject.name, name, changed, f"left {sorted(left)}", ""))
            for path in left:
                (folder / path).unlink()
        (folder / name).write_bytes(subject.files[name])


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def _within(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@contextmanager
def _noted(subject: Subject, name: str, content: bytes, tally: Tally) -> Iterator[None]:
    try:
        yield
    except LaconicError as error:
        tally.refused += 1
        tally.sentences[str(error)] += 1
        if not str(error).strip():
            tally.findings.append(Finding(subject.name, name, content, "a refusal without a sentence", ""))
    except (Exception, Hang) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/laconic/" in f.filename]
        last = frames[-1] if frames else None
        where = "" if last is None else f"{last.filename.rpartition('/laconic/')[2]}:{last.lineno} {last.line}"
        tally.findings.append(Finding(subject.name, name, content, repr(error)[:200], where))


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no answer in {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
