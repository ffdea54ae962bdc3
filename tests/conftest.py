"""Shared fixtures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.real.pool import Pool

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four connected worker processes, started on first use."""
    made = Pool()
    yield made
    made.stop()
