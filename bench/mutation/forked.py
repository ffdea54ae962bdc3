"""Running chosen tests of a collected session, in a process that was forked from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from _pytest.runner import runtestprotocol


def run_items(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, bool]]:
    """Run these tests one after another; yield each with whether it passed or was skipped."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        reports = runtestprotocol(item, log=False, nextitem=following)
        yield item, all(report.outcome != "failed" for report in reports)


def is_in_process(item: pytest.Item) -> bool:
    """Return whether a test runs here alone: processes that it starts see no mutant."""
    return not {"pool", "launch"}.intersection(getattr(item, "fixturenames", ()))


def shares(items: Sequence[pytest.Item], workers: int) -> list[list[pytest.Item]]:
    """Divide tests among processes; those of a file stay together, with what they share."""
    by_file: dict[object, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    divided: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for together in sorted(by_file.values(), key=len):  # an interrupted run knows most files
        min(divided, key=len).extend(together)
    return [share for share in divided if share]
