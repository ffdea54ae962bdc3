"""Putting a mutant into a running process: its functions get the changed code, whoever holds them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import CodeType, FunctionType

from bench.mutation.mutant import Mutant

Name = tuple[str, str, int]


def functions(folder: str) -> dict[Name, list[FunctionType]]:
    """Return all functions of this process whose source is in this folder, by file, name and first line."""
    found: dict[Name, list[FunctionType]] = {}
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # what is frozen would not be listed
    things = gc.get_objects()
    if is_frozen:
        gc.freeze()
    for thing in things:
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(folder):
            found.setdefault(_name(thing.__code__), []).append(thing)
    return found


def apply(mutant: Mutant, known: dict[Name, list[FunctionType]]) -> int:
    """Give every function that the mutant changes its new code; return how many were changed.

    Functions and lambdas that a changed one makes are made with the new code.
    """
    changed = 0
    for code in _codes(mutant.code()):
        for function in known.get(_name(code), ()):
            if function.__code__.co_freevars == code.co_freevars and function.__code__ != code:
                function.__code__ = code
                changed += 1
    return changed


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _name(code: CodeType) -> Name:
    return code.co_filename, code.co_qualname, code.co_firstlineno
