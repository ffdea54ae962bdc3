"""The exceptions of this library; each message is a sentence that names the thing, the cause and the way out."""

from __future__ import annotations


class LaconicError(Exception):
    """The base class of all errors: something that this library refuses or could not carry out."""


class StrategyError(LaconicError, ValueError):
    """A strategy that makes no sense; the message names what to write instead."""


class ContractError(LaconicError, RuntimeError):
    """The user's model, optimizer or loop does something that the strategy cannot support."""


class ProgramError(LaconicError, ValueError):
    """A program of sends does not do what its collective says."""


class PipelineError(LaconicError, ValueError):
    """An order of a pipeline's tasks that is no training step, or that cannot be made for these sizes."""


class ClusterError(LaconicError, ValueError):
    """A job, a cluster or a decision of a policy that cannot be."""


class Disagreement(LaconicError, RuntimeError):
    """Ranks that should agree do not; the message names the difference."""


class WorkerLost(LaconicError, RuntimeError):
    """A worker died, froze or cannot be reached any more."""


class NonFinite(LaconicError, ArithmeticError):
    """A gradient is NaN or infinite under `nonfinite="raise"`."""


class WriteError(LaconicError, OSError):
    """A file or a folder that cannot be written: the disk is full, or the place is not ours."""
