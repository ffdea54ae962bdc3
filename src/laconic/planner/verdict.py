"""The planner's verdict, in one to three sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from laconic.planner.autotune import PAYS
from laconic.planner.preferences import Preferences
from laconic.planner.price import Pricer
from laconic.planner.priced_candidates import CAPS, MIB, Baseline, Candidate, gain_over
from laconic.planner.shown_candidates import front, one_of_each


def verdict_of(
    pricer: Pricer,
    base: Baseline,
    best: Candidate | None,
    chosen: Candidate,
    ranked: Sequence[Candidate],
    preferences: Preferences,
) -> str:
    """Return the verdict in one to three sentences."""
    deployment = pricer.deployment
    if deployment.workers == 1:
        return "One worker exchanges nothing: the network is not your problem."
    rival = "tuned DDP with 16-bit gradients"
    low, high = (0.0, 0.0) if best is None else gain_over(best, base, preferences)
    if best is not None and low > 0:
        gain = base.candidate.amount / best.amount if best.amount else float("inf")
        claim = (
            f"`{best.strategy}` is predicted to be {gain:.2f} times as fast as {rival} ({low:.2f} to {high:.2f} by the "
            "errors that were measured)"
            if preferences.objective == "time"
            else f"`{best.strategy}` takes {1 / gain:.3g} of what {rival} takes in {preferences.objective}"
        )
        more = _beyond(ranked, base, best, preferences)
        if low >= 1:
            return f"{claim}.{more}"
        return f"Nothing pays for certain: {claim}; `laconic compare` tells. {_own_words(chosen, base)}{more}"
    plain = min((pricer.ddp("none", cap * MIB) for cap in CAPS), key=lambda priced: priced.seconds)
    waits = float(plain.seconds) / deployment.computing_seconds - 1 if deployment.computing_seconds else 0.0
    if waits < PAYS - 1 and preferences.objective == "time":
        return (
            "Nothing to do: the network is not your problem. Plain DDP would take "
            f"{100 * max(waits, 0.0):.1f} % longer than computing alone. {_own_words(chosen, base)}"
        )
    kept = f"Nothing admitted here beats {rival} by {100 * (PAYS - 1):.0f} %: keep it. {_own_words(chosen, base)}"
    return f"{kept}{_beyond(ranked, base, best, preferences)}"


def _beyond(ranked: Sequence[Candidate], base: Baseline, best: Candidate | None, preferences: Preferences) -> str:
    """Return sentences on what is better than anything admitted: what risks least of what was measured, and the best
    of what is unknown."""
    than = base.candidate.amount if best is None else min(best.amount, base.candidate.amount)
    better = [candidate for candidate in ranked if candidate.amount * PAYS <= than]
    text = ""
    measured = [candidate for candidate in front(better) if not candidate.admitted_by(preferences)]
    if measured and (risk := measured[-1].risk) is not None:
        text += (
            f" What comes nearest: `{measured[-1].strategy}` would {_gained(measured[-1], base, preferences)}, and was "
            f"measured to end {100 * (risk.low - 1):+.1f} to {100 * (risk.high - 1):+.1f} % above `bsp` in loss "
            "(--loss-budget)."
        )
    unknown = one_of_each([candidate for candidate in better if candidate.is_unknown], base)
    found = min(unknown, key=lambda candidate: candidate.amount, default=None)
    if found is not None:
        text += (
            f" By {preferences.objective} alone `{found.strategy}` would {_gained(found, base, preferences)}; what "
            "that does to the loss is unknown here: `laconic plan --verify 5min` with your script trains it first."
        )
    return text


def _gained(candidate: Candidate, base: Baseline, preferences: Preferences) -> str:
    gain = base.candidate.amount / candidate.amount if candidate.amount else math.inf
    return (
        f"be {gain:.3g} times as fast" if preferences.objective == "time" else f"take {1 / gain:.2g} of what it takes"
    )


def _own_words(chosen: Candidate, base: Baseline) -> str:
    """Return what to write for laconic where the baseline is to be kept, and how it compares."""
    speed = base.candidate.priced.seconds / chosen.priced.seconds if chosen.priced.seconds else 1.0
    return f"With laconic, write `{chosen.strategy}`: {speed:.2f} times its speed."
