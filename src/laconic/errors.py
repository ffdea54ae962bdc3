"""Errors are sentences: each names the thing, the cause and the way out."""

from __future__ import annotations


class LaconicError(Exception):
    """Anything this library refuses or could not carry out."""


class StrategyError(LaconicError, ValueError):
    """A strategy that makes no sense; the message says what to write instead."""


class ContractError(LaconicError, RuntimeError):
    """The user's model, optimizer or loop does something the sentence cannot honour."""


class Disagreement(LaconicError, RuntimeError):
    """Ranks that should be alike are not; the message names the difference."""


class WorkerLost(LaconicError, RuntimeError):
    """A peer died, froze or cannot be reached any more."""


class NonFinite(LaconicError, ArithmeticError):
    """A NaN or infinite gradient under `nonfinite="raise"`."""
