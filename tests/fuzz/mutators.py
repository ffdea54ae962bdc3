"""Ways to spoil an input: as bytes, as text, as a table and as a tree of JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

CELLS = (
    "nan", "inf", "-inf", "-1", "0", "1e308", "-1e-308", "1e999", "9" * 30, "9" * 400, "9" * 5000, "", " ", "true",
    "None", "x", "é€", "\x00", "1,5", "0x10", "1_000", "½", "#", '"', "{", "../..", "%s", "[red]", "1e6", "2.5",
    "1000000", "10000000000",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**30, -(10**30), 1.5, float("nan"), float("inf"), -float("inf"), 1e308, "", "x",
    "nan", "1Gbit", [], {}, [1], ["x"], {"x": 1}, [[]], "\ud800", "\x00", 2**63, 1e-320,
)  # fmt: skip
_TOKEN = re.compile(r"[A-Za-z_]+|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|[^\sA-Za-z0-9_]")


def spoilt(data: bytes, draw: Random) -> bytes:
    """Return the input after one to three changes; now and then it may be the same."""
    kinds = _KINDS if b"\n" in data[:-1] else _KINDS_OF_A_LINE
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = draw.choice(kinds)(data, draw)
    return data


# ---------------------------------------------------------------------------------------------- bytes


def _cut(data: bytes, draw: Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _behead(data: bytes, draw: Random) -> bytes:
    return data[draw.randrange(len(data) + 1) :]


def _flip(data: bytes, draw: Random) -> bytes:
    if not data:
        return data
    made = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    return bytes(made)


def _noise(data: bytes, draw: Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.randbytes(draw.choice((1, 7, 300))) + data[at:]


def _other_encoding(data: bytes, draw: Random) -> bytes:
    text = data.decode("utf-8", errors="replace")
    return draw.choice(
        (
            lambda: text.encode("utf-16"),
            lambda: b"\xef\xbb\xbf" + data,
            lambda: (text + "é").encode("latin-1", errors="replace"),
            lambda: text.replace("\n", "\r\n").encode(),
            lambda: text.replace("\n", "\r").encode(errors="surrogatepass"),
        )
    )()


def _whole(data: bytes, draw: Random) -> bytes:
    """Return something else altogether."""
    return draw.choice(
        (
            b"", b"\n", b"\x00", b"null", b"[]", b"{}", b"0", b'"x"', b"[" * 100_000, b'{"a":' * 50_000,
            b"\x1f\x8b", b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"a,b\n1,2\n", b"# only a comment\n", b"NaN", b"\xff\xfe",
            b"-" * 70_000, b"(" * 3_000 + b")" * 3_000, b"[" * 3_000 + b"]" * 3_000, b"9" * 5_000,
        )
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- text


def _lines(data: bytes, draw: Random) -> bytes:
    """Remove, double or move a line."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    line = lines.pop(draw.randrange(len(lines)))
    for _ in range(draw.randrange(3)):
        lines.insert(draw.randrange(len(lines) + 1), line)
    return b"".join(lines)


def _token(data: bytes, draw: Random) -> bytes:
    """Replace, remove or double a word, a number or a sign."""
    text = data.decode("utf-8", errors="surrogateescape")
    found = list(_TOKEN.finditer(text))
    if not found:
        return data
    one = draw.choice(found)
    put = draw.choice((draw.choice(CELLS), draw.choice(CELLS), "", one[0] * 2, draw.choice(found)[0]))
    return (text[: one.start()] + put + text[one.end() :]).encode("utf-8", errors="surrogateescape")


def _number(data: bytes, draw: Random) -> bytes:
    """Replace a number by one that makes no sense."""
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", data))
    if not found:
        return _token(data, draw)
    one = draw.choice(found)
    return data[: one.start()] + draw.choice(CELLS).encode() + data[one.end() :]


# ---------------------------------------------------------------------------------------------- tables and trees


def _cell(data: bytes, draw: Random) -> bytes:
    """Spoil a CSV table: a cell, a column, the length of a row."""
    try:
        rows = list(csv.reader(io.StringIO(data.decode())))
    except (ValueError, csv.Error):
        return _token(data, draw)
    if len(rows) < 2 or len(rows[0]) < 2:
        return _token(data, draw)
    row, column = draw.choice(rows), draw.randrange(len(rows[0]))
    kind = draw.randrange(6)
    if kind <= 1 and column < len(row):
        row[column] = draw.choice(CELLS)
    elif kind == 2:
        rows = [each[:column] + each[column + 1 :] for each in rows]
    elif kind == 3:
        rows[0][column] = draw.choice((draw.choice(rows[0]), "", "another"))
    elif kind == 4:
        del row[column:]
    else:
        row.extend(["1"] * draw.randint(1, 3))
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode(errors="surrogatepass")


def _tree(data: bytes, draw: Random) -> bytes:
    """Spoil a JSON document, or one line of JSON Lines: a value, a key, its depth, a doubled key."""
    try:
        return _dumped(_changed(json.loads(data), draw), draw)
    except (ValueError, RecursionError):
        pass
    lines = data.splitlines()
    if not lines:
        return _token(data, draw)
    at = draw.randrange(len(lines))
    try:
        lines[at] = _dumped(_changed(json.loads(lines[at]), draw), draw)
    except (ValueError, RecursionError):
        return _token(data, draw)
    return b"\n".join(lines) + b"\n"


def _changed(tree: Any, draw: Random) -> Any:
    here, way = tree, []
    while isinstance(here, dict | list) and here and (not way or draw.random() < 0.8):
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        way.append((here, key))
        here = here[key]
    if not way:
        return draw.choice(VALUES)
    parent, key = way[-1]
    kind = draw.randrange(6)
    if kind <= 2:
        parent[key] = draw.choice(VALUES)
    elif kind == 3:
        del parent[key]
    elif kind == 4 and isinstance(parent, dict):
        parent[draw.choice(("another", "", *map(str, parent)))] = parent.pop(key)
    elif kind == 4:
        parent.append(draw.choice((parent[key], *VALUES)))
    else:
        parent[key] = [parent[key]]
    return tree


def _dumped(tree: Any, draw: Random) -> bytes:
    text = json.dumps(tree)
    if draw.random() < 0.1 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + "," + text[1:]  # every key twice
    return text.encode()


_KINDS: tuple[Callable[[bytes, Random], bytes], ...] = (
    _cut, _behead, _flip, _noise, _other_encoding, _whole, _lines, _lines, _token, _token, _token, _number,
    _cell, _cell, _cell, _tree, _tree, _tree, _tree,
)  # fmt: skip
_KINDS_OF_A_LINE: tuple[Callable[[bytes, Random], bytes], ...] = (
    _cut, _flip, _noise, _whole, _token, _token, _token, _token, _number, _number, _number, _number, _tree,
)  # fmt: skip
