"""Rules for the share of the learning rate that a late gradient gets.

Each rule is a pure function of the delay `tau` (updates since the gradient's parameters were read) and what else it
needs, and returns a factor in [0, 1]: the server multiplies its rate by it. Bounds, simulations and servers share them.
"""

from __future__ import annotations

from laconic.theory.values import require


def constant(tau: float) -> float:
    """Return 1: late gradients count as much as fresh ones."""
    return 1.0


def inverse_staleness(tau: float) -> float:
    """Return the factor of staleness-aware rates (Zhang et al., IJCAI 2016): 1 over the delay, from a delay of 1 on."""
    return 1.0 / max(1.0, _delay(tau))


def damped(tau: float) -> float:
    """Return 1 / (1 + tau), which reduces the rate from a delay of one on."""
    return 1.0 / (1.0 + _delay(tau))


def koloskova(tau: float, concurrency: float, rate: float, L: float, drop: bool = False) -> float:
    """Return the factor of Koloskova et al., 2022: 1 up to the concurrency, beyond it a rate of at most 1 / (4 L tau).

    With `drop` gradients beyond the concurrency get nothing.
    """
    if _delay(tau) <= concurrency:
        return 1.0
    return 0.0 if drop else min(1.0, 1.0 / (4.0 * L * tau * rate))


def mishchenko(tau: float, workers: int, rate: float, L: float) -> float:
    """Return the factor of Mishchenko et al., 2022: as `koloskova`, beyond twice the number of workers.

    That threshold is quoted from memory.
    """
    return koloskova(tau, 2 * workers, rate, L)


def aviv(tau: float, updates: int, cumulated: float) -> float:
    """Return the factor of Aviv et al., 2021, which falls with the delays of all `updates` so far, this one included.

    The paper's formula is not established. Chosen: 1 / (1 + the larger of the own delay and the average so far), which
    needs nothing in advance, gives the average delay's step to punctual gradients and little to a straggler's.
    """
    require(updates >= 1, f"updates={updates}: count the present update too")
    require(cumulated >= _delay(tau), f"cumulated={cumulated:g} is less than this delay of {tau:g}; add it first")
    return 1.0 / (1.0 + max(tau, cumulated / updates))


def _delay(tau: float) -> float:
    require(tau >= 0, f"tau={tau:g}: a gradient cannot be computed after it is applied")
    return tau
