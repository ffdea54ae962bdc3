"""The state of Python's own random numbers, read and written as memory.

`random.getstate` makes a tuple of 625 integers, which takes most of the time of a switch between virtual workers.
CPython keeps the same numbers in one piece behind the object's header. Where they are not found there, `getstate` it
is.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

_WORDS = struct.Struct("i624I")  # the next word to use, and the words
_shared: Any = vars(random)["_inst"]  # what the functions of the module draw from


def _find_memory() -> Any:
    """Return the memory of the state, or None where it does not hold what `getstate` returns."""
    header = object.__basicsize__
    if type(_shared).__basicsize__ < header + _WORDS.size:
        return None
    memory = (ctypes.c_char * _WORDS.size).from_address(id(_shared) + header)
    *words, place = random.getstate()[1]
    return memory if memory.raw == _WORDS.pack(place, *words) else None


_memory = _find_memory()


def state() -> Any:
    """Return the state, for `restore`."""
    return random.getstate() if _memory is None else (_memory.raw, _shared.gauss_next)


def restore(state: Any) -> None:
    """Set a state that `state` has returned."""
    if _memory is None:
        random.setstate(state)
    else:
        _memory.raw, _shared.gauss_next = state
