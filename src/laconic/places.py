"""Python modules and classes by where they stand: a file (`codecs/mine.py`), or a module (`my_package.codecs`).

So a class that no register knows can be written in a strategy, as `codecs/mine.py:Mine(0.1)`, and every process that
reads the text finds the same class.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

from laconic.errors import StrategyError

_PART = r"[A-Za-z_][A-Za-z0-9_]*"
FILE = r"[A-Za-z0-9_.~/][A-Za-z0-9_.~/-]{0,400}\.py"
PLACE = rf"(?:{FILE}|__main__|{_PART}(?:\.{_PART}){{1,20}}):{_PART}"
"""A class in a file, in a module of a package, or in the session of an interpreter."""

_loaded: dict[str, ModuleType] = {}
_given: dict[str, type] = {}


def is_place(name: str) -> bool:
    """Tell whether a word is written as the place of its class, and not as a registered name."""
    return ":" in name


def module_at(source: str) -> ModuleType:
    """Return the module in this file or of this dotted name, imported if nobody has imported it yet."""
    if not source.endswith(".py"):
        return _imported(source)
    path = Path(source).expanduser().resolve()
    running = sys.modules.get("__main__")
    if running is not None and _file_of(running) == path:  # the training script itself, which must not run twice
        return running
    if str(path) in _loaded:
        return _loaded[str(path)]
    known = next((module for module in list(sys.modules.values()) if _file_of(module) == path), None)
    return known or _executed(path, source)


def class_at(place: str) -> object:
    """Return what stands at a place; raise an error that names the file or the module where there is nothing."""
    if place in _given:
        return _given[place]
    if not re.fullmatch(PLACE, place):
        raise StrategyError(
            f"{place} is no place of a class; write a file and a class as in codecs/mine.py:Mine, or a module of a "
            "package as in my_package.codecs:Mine"
        )
    source, _, name = place.partition(":")
    module = module_at(source)
    if not hasattr(module, name):
        raise StrategyError(f"{source} has no class {name}; write one that it defines")
    return getattr(module, name)


def place_of(kind: type) -> str:
    """Return the text by which other processes find a class, and remember the class itself for this one."""
    if kind.__qualname__ != kind.__name__:
        raise StrategyError(
            f"no other process could import {kind.__qualname__}, which is defined inside a function or a class; "
            "define it at the top level of a module"
        )
    source = kind.__module__
    file = _file_of(sys.modules.get(source))
    if file is not None and "." not in source:
        below = file.is_relative_to(Path.cwd())
        source = os.path.relpath(file) if below else str(file)
    place = f"{source}:{kind.__name__}"
    if not re.fullmatch(PLACE, place):
        raise StrategyError(
            f"a strategy cannot write {place}; keep the class in a file whose path has letters, digits, - and _ only"
        )
    _given[place] = kind
    return place


def _file_of(module: object) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as `python -m` has it; the installed command has not
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise StrategyError(f"the module {name} cannot be imported ({_reason(error)}); mend or install it") from error
    finally:
        sys.path.remove(here)


def _executed(path: Path, source: str) -> ModuleType:
    """Run a file as a module under its own name, so that a script that imports it by this name finds the same one."""
    if not path.is_file():
        raise StrategyError(f"there is no file {source}; write the path of a Python file, from the current folder on")
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"_laconic_{len(_loaded)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = sys.modules[name] = _loaded[str(path)] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name], _loaded[str(path)]
        raise StrategyError(f"{source} fails when it is imported ({_reason(error)}); mend it") from error
    return module


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
