"""Names as people type them: case and punctuation do not matter, and an unknown name gets a suggestion."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from laconic.errors import LaconicError


def plain(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def pick(
    what: str, name: str, known: Iterable[str], aliases: Mapping[str, str] | None = None, noise: Iterable[str] = ()
) -> str:
    """Return the known name that is meant; `aliases` map plain names to known ones, `noise` are words to ignore."""
    known = list(known)
    table = {plain(each): each for each in known} | dict(aliases or {})
    wanted = plain(name)
    for word in noise:
        wanted = wanted.replace(word, "")
    if wanted in table:
        return table[wanted]
    near = [table[key] for key in difflib.get_close_matches(wanted, table, n=1)]
    hint = f"; did you mean {near[0]}?" if near else ""
    raise LaconicError(f"no {what} {name!r}; known are {', '.join(known)}{hint}")
