"""`laconic plan --verify`: short trainings of the user's own script show a strategy's accuracy before a full run.

This is successive halving: all strategies train side by side, each on virtual workers in its own process; after each
round the worse half is eliminated, and the others continue. The first round is as long as the shortest training that
was shown to predict, where one is known: nobody is eliminated before. Rounds share the rest of the wall-clock budget
equally. Strategies are compared at equal steps, since the plan already says how long a step takes.
"""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from laconic.launch.request import Request
from laconic.planner.phases import scales
from laconic.planner.stepped_run import SteppedRun
from laconic.planner.successive_halving import Progress, SuccessiveHalving
from laconic.planner.trial_training import TrialTraining
from laconic.planner.verify_results import Verified, VerifyError
from laconic.strategy import Strategy
from laconic.units import seconds


def read_budget(text: str | float) -> float:
    """Return the seconds of a budget such as "120s", "5min", "1h" or a number."""
    found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*)\s*(min|h)\s*", text) if isinstance(text, str) else None
    return float(found[1]) * {"min": 60, "h": 3600}[found[2]] if found else seconds(text)


def verify(
    command: Sequence[str],
    strategies: Sequence[str],
    workers: int,
    network: str | None = None,
    profile: str | None = None,
    budget_seconds: float = 120.0,
    progress: Progress = lambda share, what: None,
    metric: str = "loss",
    seeds: Sequence[int] = (),
    seed_argument: str = "--seed",
    parallel: int | None = None,
    least_steps: int = 0,
    run_steps: int | None = None,
    left_out: Sequence[str] = (),
) -> Verified:
    """Train the script with each strategy while the budget allows; the first is the baseline, which is always kept.

    `network` is a file or a rate and `profile` a file, as `laconic run --engine virtual` takes them. With `seeds` the
    script is also given `--seed N` for each, and losses are means over them. `parallel` processes compute at a time.
    None is eliminated before it has made `least_steps`. Phases are those of a run of `run_steps`, and are scaled to
    each round's length; the baseline's, and all where that is None, are trained as they are. `left_out` are sentences
    about strategies that are not among these, for the report.
    """
    if not budget_seconds > 0:
        raise VerifyError(f"a budget of {budget_seconds:g} s trains nothing: give --verify 120s, for example")
    if not strategies:
        raise VerifyError("there is no strategy to verify: give at least the baseline")
    at_once = parallel or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="laconic-") as folder:
        first, *others = dict.fromkeys(strategies)
        trainings = [TrialTraining(first), *(_trial(text, run_steps) for text in others)]
        numbers = itertools.count()

        def begin(strategy: str, seed: int | None) -> SteppedRun:
            more = () if seed is None else (seed_argument, str(seed))
            own = Path(folder) / str(next(numbers))
            request = Request(
                command=(*command, *more),
                workers=workers,
                strategy=strategy,
                engine="virtual",
                network=network,
                profile=profile,
                folder=str(own),
                gate=f"{own}.gate",
            )
            return SteppedRun(strategy, request, own, metric)

        halving = SuccessiveHalving(
            trainings,
            begin,
            tuple(seeds) or (None,),
            budget_seconds,
            progress,
            at_once,
            metric,
            str(command[0]),
            least_steps,
        )
        try:
            halving.start()
            halving.carry_out()
        finally:
            for training in trainings:
                training.close()
        return Verified(
            tuple(command),
            workers,
            network,
            profile,
            metric,
            budget_seconds,
            halving.spent_seconds,
            trainings[0].strategy,
            tuple(seeds),
            halving.ranked(),
            least_steps,
            tuple(left_out),
        )


def _trial(text: str, run_steps: int | None) -> TrialTraining:
    strategy = Strategy.parse(text)
    scaled = run_steps is not None and scales(strategy)
    return TrialTraining(text, phases=strategy if scaled else None, run_steps=run_steps)
