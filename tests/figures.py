"""Which techniques reproduce a published figure: tests of figures say so, and the register is held to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., None])


def figure(of: dict[str, str], name: str) -> Callable[[Test], Test]:
    """The test below reproduces what the technique of this name declares; `of` remembers the test's own name."""

    def remember(test: Test) -> Test:
        of[name] = test.__name__
        return test

    return remember
