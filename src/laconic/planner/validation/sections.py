"""The sections of `laconic validate`: each is recomputed, or skipped with a reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from laconic.errors import LaconicError
from laconic.planner.validation import large_models, nccl, pollux, runs
from laconic.planner.validation import step_times as published
from laconic.planner.validation.claims import LARGE, NCCL, POLLUX, PUBLISHED, RUNS, SECTIONS
from laconic.planner.validation.large_models import LargeModels
from laconic.planner.validation.nccl import SystemErrors
from laconic.planner.validation.pollux import ModelErrors
from laconic.planner.validation.published_steps import read
from laconic.planner.validation.runs import RunErrors
from laconic.planner.validation.step_times import Validation


@dataclass(frozen=True)
class Recomputed:
    """The recomputed results by section, and the reason for each section that was skipped."""

    published: tuple[Validation, ...] | None = None
    nccl: tuple[SystemErrors, ...] | None = None
    pollux: tuple[ModelErrors, ...] | None = None
    large: LargeModels | None = None
    runs: RunErrors | None = None
    skipped: tuple[tuple[str, str], ...] = ()


def named(text: str) -> str:
    """Return the section that a text names, in full or by its beginning."""
    found = [name for name in SECTIONS if name.startswith(text.strip().lower())] if text.strip() else []
    if len(found) != 1:
        raise LaconicError(f"no section {text!r}: write one of {', '.join(SECTIONS)}")
    return found[0]


def recompute(data: Path | None, names: Iterable[str] = SECTIONS, network: str | None = None) -> Recomputed:
    """Recompute the named sections; raise an error only if none could be recomputed."""
    found: dict[str, object] = {}
    skipped: list[tuple[str, str]] = []
    for name in names:
        try:
            found[_FIELDS[name]] = _section(name, data, network)
        except LaconicError as error:
            skipped.append((name, str(error)))
    if not found:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped)
        raise LaconicError(f"nothing could be recomputed. {reasons}")
    return Recomputed(**found, skipped=tuple(skipped))  # type: ignore[arg-type]


_FIELDS = {PUBLISHED: "published", NCCL: "nccl", POLLUX: "pollux", LARGE: "large", RUNS: "runs"}


def _section(name: str, data: Path | None, network: str | None) -> object:
    if name == RUNS:
        return runs.validate()
    if name == LARGE:
        return large_models.validate(data)
    if data is None:
        raise LaconicError(
            "set LACONIC_DATA (or --data) to the folder of published measurements (`laconic data` says which, and "
            "where they are from)"
        )
    if name == NCCL:
        return tuple(nccl.validate(data))
    if name == POLLUX:
        return tuple(pollux.validate(data))
    experiments = read(data)
    if network is not None and network not in experiments.networks:
        raise LaconicError(f"no network {network!r} in the table; it has {', '.join(experiments.networks)}")
    return tuple(published.validate(experiments, one) for one in experiments.networks if network in (None, one))
