"""Which hot loops plain torch has computed because no faster body takes these tensors: counted by name, to be shown.

The bodies of `reference`, and loops over lists for which a device has no body, count themselves while somebody counts:
an exchange of a bucket does. Faster bodies know nothing of it, so that it costs them nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")
Calls = Counter[str]
"""How often plain torch computed each loop."""


class _Counting(threading.local):
    calls: Calls | None = None


_now = _Counting()


@contextmanager
def counting(calls: Calls | None) -> Iterator[None]:
    """Count the calls within this block, and nowhere else; None: do not count them."""
    before, _now.calls = _now.calls, calls
    try:
        yield
    finally:
        _now.calls = before


def counted_within(communication: Generator[Any, Any, Result], calls: Calls) -> Generator[Any, Any, Result]:
    """Run a generator as it is, and count what plain torch computes in it."""
    answer: Any = None
    while True:
        before, _now.calls = _now.calls, calls
        try:
            request = communication.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            _now.calls = before
        answer = yield request


def counted(body: Callable[Given, Result]) -> Callable[Given, Result]:
    """Count the calls of a body in plain torch; loops inside it are a part of it."""

    @wraps(body)
    def plain(*given: Given.args, **named: Given.kwargs) -> Result:
        if _now.calls is None:
            return body(*given, **named)
        _now.calls[body.__name__] += 1
        with counting(None):
            return body(*given, **named)

    return plain


def composed(loop: Callable[Given, Result]) -> Callable[Given, Result]:
    """Count the calls of a loop over a list that is composed of the bodies in its first argument, where these have none
    for the loop itself: between them it is plain torch, one tensor after another."""
    plain = counted(loop)

    @wraps(loop)
    def made(*given: Given.args, **named: Given.kwargs) -> Result:
        if _now.calls is None or hasattr(given[0], loop.__name__):
            return loop(*given, **named)
        return plain(*given, **named)

    return made
