"""Which techniques reproduce a published figure: tests of figures declare it, and the registry is checked against
them."""

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
