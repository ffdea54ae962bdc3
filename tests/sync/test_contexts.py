"""What a rule sees: a small core, and more only for rules that ask for it by their type."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from laconic.runtime.sync_context import TierContext
from laconic.sync import base, contexts
from laconic.sync.base import SyncContext

RULE = """
from collections.abc import Generator
from typing import Any
from laconic.sync.base import State, Sync, SyncContext
from laconic.sync.contexts import MixingContext

class Near(Sync[MixingContext]):
    def after_step(self, context: MixingContext, state: State) -> Generator[Any, Any, State]:
        yield from context.mix(context.parameters, context.mixing().at(0))
        return state

class Plain(Sync):
    def after_step(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        yield from context.average(context.parameters)
        return state

class TooFar(Sync):
    def after_step(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        yield from context.mix(context.parameters, context.mixing().at(0))
        return state

class Undeclared(Sync):
    def after_step(self, context: MixingContext, state: State) -> Generator[Any, Any, State]:
        return state
        yield
"""


def members(protocol: type) -> set[str]:
    return {
        name for kind in protocol.__mro__ for name in vars(kind) if name[0] != "_" and kind.__module__[:7] == "laconic"
    }


def test_the_core_is_what_most_rules_need() -> None:
    what = "parameters names gradients buffers optimizer rate group step seed note apply average average_and_sent mean"
    assert members(SyncContext) == set(what.split())


def test_the_engine_implements_every_context() -> None:
    found = [kind for _, kind in inspect.getmembers(contexts, inspect.isclass) if kind.__module__ == contexts.__name__]
    everything = members(contexts.EveryContext)
    assert len(found) > 5 and all(members(kind) <= everything for kind in found)
    assert everything <= set(dir(TierContext))


@pytest.mark.long
def test_a_type_checker_refuses_a_rule_that_reaches_beyond_its_context(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed: pip install 'laconic[dev]'")
    (tmp_path / "rule.py").write_text(RULE)
    (tmp_path / "mypy.ini").write_text("[mypy]\nfollow_imports = skip\nignore_missing_imports = true\n")
    checked = [Path(module.__file__ or "") for module in (base, contexts)]  # and nothing that these import
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", tmp_path, "rule.py", *checked]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert re.findall(r"\[([a-z-]+)\]$", done.stdout, re.MULTILINE) == [
        "attr-defined",  # TooFar: mix
        "attr-defined",  # TooFar: mixing
        "override",  # Undeclared: a context of its own choice
    ], done.stdout + done.stderr
