"""Whose code a place is: the techniques that classes and functions are registered by, in whichever room they lie."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from bench.mutation import sources

Mark = tuple[str, int]


@cache
def homes() -> Mapping[str, Mapping[str, set[str]]]:
    """Return, by file and by the name of a class or function there, all names that it is registered by.

    A function that only hands its arguments on to a class of another file (an optimizer) registers that class too.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for file in sources.files(every=True):
        tree = sources.tree_of(file)
        for node in tree.body:
            if names := _names(node):
                for home, scope in [(file, node.name), *_handed_on(node, tree)]:  # type: ignore[attr-defined]
                    found.setdefault(home, {}).setdefault(scope, set()).update(names)
    return found


@cache
def outside() -> list[str]:
    """Return the files with techniques' own code that are not of the four words."""
    return sorted(homes().keys() - set(sources.files()))


def outside_of(marks: Iterable[Mark]) -> set[str]:
    """Return those that hold code of these marks' techniques; of a sentence, which no file registers, all of them."""
    return {file for name, _ in marks for file in outside() if not is_registered(name) or is_in(name, file)}


@cache
def is_registered(name: str) -> bool:
    """Return whether a class or a function is registered by this name."""
    return any(is_in(name, file) for file in homes())


@cache
def is_in(name: str, file: str, scope: str = "") -> bool:
    """Return whether a place is this technique's: in its class or function, or in what all of its file share."""
    here = homes().get(file, {})
    return normal(name) in here.get(scope, {each for names in here.values() for each in names})


def normal(name: str) -> str:
    """Return a name as the registry compares names."""
    return re.sub(r"[_\-\s]", "", name).lower()


def _names(node: ast.stmt) -> set[str]:
    """Return the name and the aliases that a definition is registered by."""
    for call in getattr(node, "decorator_list", ()):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "technique":
            aliases = [name for k in call.keywords if k.arg == "aliases" for name in ast.literal_eval(k.value)]
            return {normal(name) for name in (ast.literal_eval(call.args[0]), *aliases)}
    return set()


def _handed_on(node: ast.stmt, tree: ast.Module) -> list[tuple[str, str]]:
    """Return where the class is defined that a function makes of its arguments and of nothing else."""
    last = node.body[-1] if isinstance(node, ast.FunctionDef) and len(node.body) <= 2 else None
    call = last.value if isinstance(last, ast.Return) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        return []
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    module = _imported(call.func.id, tree)
    return [_defined(call.func.id, module)] if module and all(isinstance(x, ast.Name) for x in given) else []


def _imported(name: str, tree: ast.Module) -> str | None:
    """Return the module of this library that a name is imported from."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    found = (node.module for node in imports if any(alias.name == name for alias in node.names))
    return next((module for module in found if module and module.startswith("laconic.")), None)


def _defined(name: str, module: str) -> tuple[str, str]:
    """Return the file that defines a name which can be imported from a module, and the name."""
    place = Path(*module.split(".")[1:])
    file = place.with_suffix(".py") if (sources.SOURCE / place.with_suffix(".py")).exists() else place / "__init__.py"
    further = _imported(name, sources.tree_of(file.as_posix()))
    return _defined(name, further) if further else (file.as_posix(), name)
