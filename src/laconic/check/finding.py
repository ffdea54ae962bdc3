"""What a check found, and how a check looks for the smallest counter-example."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from laconic.errors import LaconicError

Case = TypeVar("Case")
Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Finding:
    """Whether a property holds; where it does not, the smallest case that was found in which it fails."""

    says: str
    counter_example: str | None = None

    @property
    def holds(self) -> bool:
        return self.counter_example is None


class DoesNotApply(Exception):
    """Raised by a check of something that the technique does not promise."""


def look(checks: Iterable[Callable[[Subject], str | None]], subject: Subject) -> list[Finding]:
    """Run checks, whose docstrings are the properties that they look at; whatever one raises is a counter-example."""
    findings = []
    for check in checks:
        says = " ".join(inspect.cleandoc(check.__doc__ or "").split())
        try:
            findings.append(Finding(says, check(subject)))
        except DoesNotApply:
            continue
        except Exception as error:
            findings.append(Finding(says, raised(error)))
    return findings


def smallest(cases: Iterable[Case], judge: Callable[[Case], str | None]) -> str | None:
    """Return what is wrong in the first case that fails, or None; cases come from the smallest on."""
    for case in cases:
        try:
            wrong = judge(case)
        except DoesNotApply:
            raise
        except Exception as error:
            wrong = raised(error)
        if wrong is not None:
            return f"{case}: {wrong}"
    return None


def raised(error: Exception) -> str:
    """Return an exception as the end of a sentence: where it was raised, and what it says."""
    place = _place(error)
    text = " ".join(str(error).split())
    shown = text if isinstance(error, LaconicError) else f"{type(error).__name__}: {text}"
    return f"it raises {shown}{place}"


def _place(error: Exception) -> str:
    """Return the last line of the traceback that is not this library's own, which is most often the author's."""
    frames: list[Any] = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    own = [frame for frame in frames if "laconic" not in frame.filename.split("/") and "/torch/" not in frame.filename]
    return f" (line {own[-1].lineno} of {own[-1].filename.rpartition('/')[2]})" if own else ""
