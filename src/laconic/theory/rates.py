"""How much of the learning rate a late gradient gets.

Each rule is a pure function of the delay `tau` (updates since the gradient's parameters were read) and what else it
needs, and returns a factor in [0, 1]: the server multiplies its rate by it. Bounds, simulations and servers share them.
"""

from __future__ import annotations

from laconic.theory.values import require


def constant(tau: float) -> float:
    """Late gradients count as much as fresh ones."""
    return 1.0


def inverse_staleness(tau: float) -> float:
    """Staleness-aware rates (Zhang et al., IJCAI 2016): the rate is divided by the delay, from 1 on."""
    return 1.0 / max(1.0, _delay(tau))


def damped(tau: float) -> float:
    """1 / (1 + tau): the same, but a delay of one counts already."""
    return 1.0 / (1.0 + _delay(tau))


def koloskova(tau: float, concurrency: float, rate: float, L: float, drop: bool = False) -> float:
    """Koloskova et al., 2022: up to the concurrency unchanged, beyond it at most 1 / (4 L tau), or nothing."""
    if _delay(tau) <= concurrency:
        return 1.0
    return 0.0 if drop else min(1.0, 1.0 / (4.0 * L * tau * rate))


def mishchenko(tau: float, workers: int, rate: float, L: float) -> float:
    """Mishchenko et al., 2022: the same beyond twice the number of workers (a threshold quoted from memory)."""
    return koloskova(tau, 2 * workers, rate, L)


def aviv(tau: float, updates: int, cumulated: float) -> float:
    """Aviv et al., 2021: shrink with the delays accumulated over all `updates` so far, this one's included.

    The paper's formula is not established. Chosen: 1 / (1 + the larger of the own delay and the average so far), which
    needs nothing in advance, gives the average delay's step to punctual gradients and little to a straggler's.
    """
    require(updates >= 1, f"updates={updates}: count the present update too")
    require(cumulated >= _delay(tau), f"cumulated={cumulated:g} is less than this delay of {tau:g}; add it first")
    return 1.0 / (1.0 + max(tau, cumulated / updates))


def _delay(tau: float) -> float:
    require(tau >= 0, f"tau={tau:g}: a gradient cannot be computed after it is applied")
    return tau
