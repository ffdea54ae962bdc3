"""A question to convergence theory: a problem, a cluster, and a target."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.literals import read_number
from laconic.theory.delayed.orders import Curvature
from laconic.theory.values import Measure, Problem, counts, require
from laconic.units import seconds

MOST_WORKERS, LARGEST = 1_000_000, 1e30


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
    counts(workers=workers, iterations=iterations, epsilon=epsilon)
    require(workers <= MOST_WORKERS, f"--workers {workers} are too many to compare; give at most {MOST_WORKERS}")
    _in_range(
        iterations=iterations, epsilon=epsilon, smoothness=smoothness, sigma=sigma, mu=mu, gap=gap, distance=distance,
        gradient_bound=gradient_bound, tau_max=tau_max, tau_avg=tau_avg,
    )  # fmt: skip
    pace = (1.0,) * workers if speeds is None else tuple(_number(part, "--speeds") for part in speeds.split(","))
    require(len(pace) == workers, f"--speeds names {len(pace)} workers and --workers {workers}; give one number each")
    require(min(pace) > 0, f"--speeds {speeds}: every speed must be above 0")
    _in_range(speeds=min(pace))
    _in_range(speeds=max(pace))
    average = float(workers - 1) if tau_avg is None else tau_avg
    longest = max(average, (sum(pace) - min(pace)) / min(pace)) if tau_max is None else tau_max
    require(0 <= average <= longest, f"--tau-avg {average:g} must lie between 0 and --tau-max {longest:g}")
    bound = None if gradient_bound is None else gradient_bound**2
    size = None if model_bytes is None else _number(model_bytes, "--model-bytes")
    step, a_round = (None if text is None else seconds(text) for text in (step_seconds, round_seconds))
    _in_range(model_bytes=size, step_seconds=step, round_seconds=a_round)
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


def _in_range(**given: float | None) -> None:
    """Refuse what is negative, and what is so large or so small that powers of it are no numbers any more."""
    for name, value in given.items():
        if value is not None and value != 0 and not 1 / LARGEST <= value <= LARGEST:
            raise LaconicError(
                f"--{name.replace('_', '-')} {value:g} makes no sense: give 0, or a number from {1 / LARGEST:g} to "
                f"{LARGEST:g}"
            )


def _number(text: str, option: str) -> float:
    try:
        return float(read_number(text.strip()))
    except ValueError:
        raise LaconicError(f'"{text}" in {option} is no number; write one such as 5, 0.5 or 100MiB') from None
