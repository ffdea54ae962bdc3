"""Running chosen tests of a collected session, in a process that was forked from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from _pytest.runner import runtestprotocol

ASSERTIONS = ("AssertionError", "assert ", "Failed: ")
"""How the messages of failures begin that a test has asked for; what begins otherwise broke on its way."""


def run_items(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, list[str]]]:
    """Run these tests one after another; yield each with the messages of its failures: none where it passed or was
    skipped."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        reports = runtestprotocol(item, log=False, nextitem=following)
        yield item, [_message(report) for report in reports if report.outcome == "failed"]


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", "")) or "unknown"


def is_asserted(messages: Sequence[str]) -> bool:
    """Return whether a failure is one that the test has asked for, by an assertion."""
    return any(message.startswith(ASSERTIONS) for message in messages)


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
