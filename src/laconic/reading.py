"""Reading what others wrote: text, JSON and CSV become checked values, and anything else is refused in one sentence.

What a file may hold is said by the types of the value that it becomes: `Positive`, `Natural` and their like are numbers
with bounds, which hold for what is read (Python checks none of them where a program makes the value).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from laconic.errors import LaconicError
from laconic.files import is_file

_LARGEST = 1e300  # so that neither NaN nor infinity is read

Finite = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=_LARGEST)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Natural = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """Something to read: `where` it is, `what` it should be, what to do `instead` where it is not, and the error."""

    where: str | Path
    what: str
    instead: str
    refusal: type[LaconicError] = LaconicError

    def refused(self, why: object) -> LaconicError:
        """Return the error that refuses this source."""
        return self.refusal(f"{self.where} is no {self.what} ({' '.join(str(why).split())[:300]}): {self.instead}")

    def text(self) -> str:
        """Return the text of the file at `where`."""
        path = Path(self.where)
        if not is_file(path):
            raise self.refusal(f"there is no {self.what} at {path}: {self.instead}")
        try:
            return path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeError) as error:
            raise self.refused(getattr(error, "strerror", None) or error) from error

    def json(self, text: str | bytes) -> Any:
        """Return the tree of a JSON text."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.refused(error) from error

    def value(self, tree: Any, kind: type[T], *, lax: bool = False) -> T:
        """Return a tree of names and values as a value of this kind; with `lax`, numbers may be written as text."""
        try:
            made = msgspec.convert(tree, kind, strict=not lax)
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise self.refused(_plainly(error)) from error
        if not lax and (unknown := next(_unknown(tree, made), None)) is not None:
            raise self.refused(f"it has an unknown {unknown!r}")
        return made

    def rows(self, text: str, kind: type[T]) -> list[T]:
        """Return the rows of a CSV table with these columns among others; lines that begin with # are comments."""
        lines = io.StringIO("".join(line for line in text.splitlines(keepends=True) if not line.startswith("#")))
        found = []
        try:
            for number, row in enumerate(csv.DictReader(lines, restval="", strict=True), 1):
                named = {name: cell for name, cell in row.items() if isinstance(name, str)}
                found.append(self._row(number, named, kind))
        except csv.Error as error:
            raise self.refused(error) from error
        if not found:
            raise self.refused("it has no rows")
        return found

    def _row(self, number: int, row: dict[str, str], kind: type[T]) -> T:
        try:
            return msgspec.convert(row, kind, strict=False)
        except (msgspec.ValidationError, UnicodeError) as error:
            if missing := re.search(r"required field `(.*)`", str(error)):
                raise self.refused(f"it has no column {missing[1]}") from error
            what, _, name = _plainly(error).rpartition(" at ")
            raise self.refused(f"row {number}: {name} is {row.get(name)!r}: {what}") from error


def _plainly(error: Exception) -> str:
    """Return msgspec's message without its own notation of places."""
    message = re.sub(r" - at `\$\.?(.*)`$", lambda found: f" at {found[1]}" if found[1] else "", str(error))
    message = message.replace("Object missing required field", "there is no")
    return message.replace("`float`", "number").replace("`int`", "whole number").replace("`str`", "text")


def _unknown(tree: Any, made: Any) -> Iterator[str]:
    """Yield the names in a tree that the value made of it does not have, which would silently be ignored."""
    plain = msgspec.to_builtins(made, enc_hook=lambda _: None)
    stack = [(tree, plain)]
    while stack:
        given, kept = stack.pop()
        if isinstance(given, dict) and isinstance(kept, dict):
            yield from (name for name in given if name not in kept)
            stack += [(given[name], kept[name]) for name in given if name in kept]
        elif isinstance(given, list) and isinstance(kept, list | tuple):
            stack += zip(given, kept, strict=False)
