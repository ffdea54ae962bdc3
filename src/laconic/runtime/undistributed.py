"""Notice a script that trains without `distribute()`: N workers would train N models, and nobody would say so.

A launched process counts its optimizer's steps until its script has called `distribute()`. A few are allowed: scripts
step once to make an optimizer's state before they load it, or to warm up a compiler.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch.distributed as dist

from laconic.errors import ContractError
from laconic.runtime.current_worker import current, rank, size
from laconic.values.run_config import RunConfig

_FREE_STEPS = 2

_distributed: set[int] = set()  # the ranks in this process whose script has called distribute()
_steps: Counter[int] = Counter()


def note_distributed() -> None:
    """Note that this worker's script has called `distribute()`."""
    _distributed.add(rank())


def forget_all() -> None:
    """Begin anew, where another run begins in the same process."""
    _distributed.clear()
    _steps.clear()


def before_step(*_: Any) -> None:
    """Count a step of any optimizer, before it is taken; raise where the script trains alone."""
    if rank() in _distributed or _joined_by_itself():
        return
    _steps[rank()] += 1
    if _steps[rank()] > _FREE_STEPS:
        raise ContractError(_sentence(f"its optimizer steps for the {_FREE_STEPS + 1}rd time"))


def at_end() -> None:
    """Raise where a script has ended without `distribute()` although it trained, or was asked for what it costs."""
    config = RunConfig.current()
    if rank() in _distributed or _joined_by_itself():
        return
    if _steps[rank()] or config.dry_run or config.profile_to is not None:
        raise ContractError(_sentence("it has ended"))


def _joined_by_itself() -> bool:
    """Return whether the script made its own process group, as scripts for DDP do; a rehearsal sees nothing of it."""
    config = RunConfig.current()
    if config.dry_run or config.profile_to is not None:
        return False
    return current() is None and dist.is_available() and dist.is_initialized()


def _sentence(event: str) -> str:
    workers = RunConfig.current().workers or size()
    alone = f", so that each of the {workers} workers trains a model of its own" if workers > 1 else ""
    return (
        f"the script does not call laconic.distribute(), and {event}{alone}. Write `model, optimizer = "
        "laconic.distribute(model, optimizer)` before the training loop."
    )
