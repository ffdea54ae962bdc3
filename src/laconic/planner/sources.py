"""The subject of a plan as a profile: from a script, a model's name, a profile or a trace."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from laconic.files import exists, is_file
from laconic.planner.candidates import chains
from laconic.planner.networks import PROBE
from laconic.planner.values import PlanError
from laconic.profile.gpus import Gpu, gpu, profile_of
from laconic.profile.zoo import canonical
from laconic.values.profile import Profile

MOST_WORKERS = 1_000_000
STEPS = 16  # that a profiling run times


@dataclass(frozen=True)
class Subject:
    """The subject of a plan: a model's times, the GPU if one is named, and notes on where the figures come from."""

    name: str
    profile: Profile
    gpu: Gpu | None = None
    notes: tuple[str, ...] = ()
    path: Path | None = None  # of the profile, where it is a file


def is_script(subject: str) -> bool:
    """Return whether a subject is named as a training script is."""
    return subject.endswith(".py")


def subject_of(
    text: str,
    arguments: Sequence[str],
    workers: int,
    network: str,
    gpu_name: str | None = None,
    batch: int | None = None,
    net: str | None = None,
    fresh: bool = False,
) -> Subject:
    """Return the subject that a text names: `train.py`, `profile.json`, `trace.json.gz` or `resnet50`, say."""
    if not 1 <= workers <= MOST_WORKERS:
        raise PlanError(f"a plan is for at least one worker, at most {MOST_WORKERS}, not {workers}: change --workers")
    path = Path(text)
    if is_script(text):
        return _of_script(text, arguments, workers, network, net, fresh)
    if arguments:
        raise PlanError(f"only a script has arguments, {text} has none: leave out {' '.join(arguments)}")
    if path.suffix in (".json", ".gz"):
        return _of_file(path, gpu_name)
    if exists(path):
        raise PlanError(f"{text} is no script (.py), profile or trace (.json, .json.gz): give one of these")
    return _of_zoo(text, gpu_name, batch)


def _of_script(
    text: str, arguments: Sequence[str], workers: int, network: str, net: str | None, fresh: bool
) -> Subject:
    """Profile a script: on all workers, with their links, if they are at hand, otherwise on one that acts for all."""
    from laconic.launch.profiling import measure

    if not is_file(text):
        raise PlanError(
            f"there is no script {text}: give the path of your training script, or a model such as resnet50"
        )
    here = network == PROBE
    with _stdout_to_stderr():
        kept = measure(
            (text, *arguments),
            workers if here else 1,
            net=net,
            steps=STEPS,
            fresh=fresh,
            play=None if here or workers == 1 else workers,
            words=[chain for chain in chains() if chain != "none"],
        )
    note = (
        f"{workers} workers profiled here, links measured"
        if here
        else "one worker profiled here; the others are taken to be equal"
    )
    return Subject(text, Profile.read(kept), notes=(note,), path=kept)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect standard output of all processes to standard error, so that the plan is the only output."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _of_file(path: Path, gpu_name: str | None) -> Subject:
    if not is_file(path):
        raise PlanError(f"there is no file {path}: give a profile (`laconic profile --out`), a trace, or a script")
    chip = None if gpu_name is None else gpu(gpu_name)
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            head = file.read(4096)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read ({error}): give a profile or a trace as JSON") from error
    if '"laconic_profile"' in head:
        return Subject(str(path), Profile.read(path), chip, (f"the profile {path}",), path)
    from laconic.profile.inputs import kineto

    return Subject(str(path), kineto.read(path), chip, (f"the PyTorch trace {path}",))


def _of_zoo(text: str, gpu_name: str | None, batch: int | None) -> Subject:
    name = canonical(text)  # refuses an unknown name and suggests a similar one
    if gpu_name is None:
        raise PlanError(f"{name} needs a machine to run on: add --gpu v100, a100, h100 …, or give your own script")
    chip = gpu(gpu_name)
    made = profile_of(name, chip, batch)
    facts = made.machine
    note = f"{name} on {chip.name} by a roofline: batch {facts['batch']}, {facts['precision']}, {facts['optimizer']}"
    return Subject(name, made, chip, (note,))
