"""A question to convergence theory: a problem, a cluster, and a target."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.literals import read_number
from laconic.theory.delayed.orders import Curvature
from laconic.theory.values import Measure, Problem, counts, require
from laconic.units import seconds

_MOST_WORKERS, _MOST_STEPS = 10**5, 10**15
_LEAST, _MOST = 1e-12, 1e15


@dataclass(frozen=True)
class Question:
    """A question; `iterations` are steps of each worker, `speeds` are relative, `step_seconds` is at speed 1."""

    problem: Problem
    workers: int
    iterations: int
    epsilon: float
    speeds: tuple[float, ...]
    tau_avg: float
    tau_max: float
    model_bytes: float | None = None
    step_seconds: float | None = None
    round_seconds: float | None = None

    @property
    def curvature(self) -> Curvature:
        """The strongest assumption that the given constants support."""
        if self.problem.mu is not None:
            return "strongly convex"
        return "non-convex" if self.problem.R0 is None else "convex"

    @property
    def measure(self) -> Measure:
        """The quantity that epsilon bounds in the methods that are compared."""
        return "|grad f|^2" if self.curvature == "non-convex" else "f - f*"


def ask(
    *,
    workers: int,
    iterations: int,
    epsilon: float,
    smoothness: float,
    sigma: float,
    mu: float | None = None,
    gap: float | None = None,
    distance: float | None = None,
    gradient_bound: float | None = None,
    tau_max: float | None = None,
    tau_avg: float | None = None,
    speeds: str | None = None,
    model_bytes: str | None = None,
    step_seconds: str | None = None,
    round_seconds: str | None = None,
) -> Question:
    """Make a question from the command line's options; delays left out are those of workers that are always busy."""
    require(workers <= _MOST_WORKERS, f"--workers {workers} are too many: give {_MOST_WORKERS:,} at most")
    require(iterations <= _MOST_STEPS, f"--iterations {iterations} are too many: give {_MOST_STEPS:,} at most")
    counts(workers=workers, iterations=iterations)
    constants = {"epsilon": epsilon, "smoothness": smoothness, "mu": mu, "gradient-bound": gradient_bound}
    zero_too = {"sigma": sigma, "gap": gap, "distance": distance, "tau-max": tau_max, "tau-avg": tau_avg}
    for option, value in (constants | zero_too).items():
        _check_size(option, value, option in zero_too)
    pace = (1.0,) * workers if speeds is None else tuple(_number(part, "speeds") for part in speeds.split(","))
    require(len(pace) == workers, f"--speeds names {len(pace)} workers and --workers {workers}; give one number each")
    average = float(workers - 1) if tau_avg is None else tau_avg
    longest = max(average, (sum(pace) - min(pace)) / min(pace)) if tau_max is None else tau_max
    require(0 <= average <= longest, f"--tau-avg {average:g} must lie between 0 and --tau-max {longest:g}")
    bound = None if gradient_bound is None else gradient_bound**2
    size = None if model_bytes is None else _number(model_bytes, "model-bytes")
    step, a_round = (None if text is None else seconds(text) for text in (step_seconds, round_seconds))
    _check_size("step-seconds", step, zero_too=True)
    _check_size("round-seconds", a_round, zero_too=True)
    return Question(
        Problem(smoothness, sigma**2, mu, bound, gap, distance),
        workers,
        iterations,
        epsilon,
        pace,
        average,
        longest,
        size,
        step,
        a_round,
    )


def _number(text: str, option: str) -> float:
    try:
        found = float(read_number(text.strip()))
    except ValueError:
        raise LaconicError(f'"{text}" in --{option} is no number; write one such as 5, 0.5 or 100MiB') from None
    _check_size(option, found)
    return found


def _check_size(option: str, value: float | None, zero_too: bool = False) -> None:
    """Refuse constants that no problem has, with which the formulas would overflow."""
    require(
        value is None or _LEAST <= value <= _MOST or (zero_too and value == 0),
        f"--{option} {value} makes no sense here: give {'0 or ' if zero_too else ''}a number between {_LEAST:g} and "
        f"{_MOST:g}",
    )
