"""Logs of nccl-tests (`all_reduce_perf` and others): tables of all versions, and the newer ones' JSON and CSV.

They are converted to `LinkTimes`: for each size the bytes that one worker sends and the time of the collective, the
better of out of place and in place, as training uses either. Sizes in the log are those of the larger buffer.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laconic.profile.fit import operation_times
from laconic.profile.inputs.collectives import CARRIED_BY
from laconic.profile.inputs.files import InputError, text_of, without_colours
from laconic.values.profile import LinkTimes, OperationTimes, Point
from laconic.values.wire import wire_factor

DTYPES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "char": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
OPERATIONS = {  # the programs' names without underscores
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
}
MOST_RANKS = 10_000_000
_WHAT = "the output of nccl-tests, such as `all_reduce_perf -b 8 -e 1G -f 2 -g 8 | tee log`"


@dataclass(frozen=True)
class Row:
    """One line of a log: bytes of the larger buffer; seconds, bus rate and wrong values, out of place and in place."""

    nbytes: int
    dtype: str
    seconds: tuple[float, ...]
    bus_bytes_per_second: tuple[float, ...]
    wrong: float


@dataclass(frozen=True)
class NcclLog:
    """A log of nccl-tests: the collective, the number of ranks, and a row for each size."""

    operation: str
    ranks: int
    rows: tuple[Row, ...]

    def links(self, bits_per_second: float | None = None) -> LinkTimes:
        """Return the times as the virtual engine and the planner use them; concurrent collectives share one ring."""
        factor = wire_factor(CARRIED_BY.get(self.operation, self.operation), self.ranks)
        if self.operation == "all_gather":
            factor /= self.ranks  # the log has the gathered size
        found: list[OperationTimes] = []
        for dtype in dict.fromkeys(row.dtype for row in self.rows):
            best: dict[float, float] = {}
            for row in self.rows:
                if row.dtype == dtype and row.nbytes:
                    sent = row.nbytes * factor
                    best[sent] = min(best.get(sent, math.inf), *row.seconds)
            if best:
                points = [Point(sent, seconds, seconds) for sent, seconds in sorted(best.items())]
                found.append(operation_times(self.operation, dtype, points))
        if not found:
            raise InputError("this nccl-tests log has sizes of 0 bytes only: run it with -b 8 -e 1G -f 2")
        return LinkTimes(bits_per_second, 0.0, tuple(found))


def read(path: str | Path, operation: str | None = None, ranks: int | None = None) -> NcclLog:
    """Return the log of a file; `operation` and `ranks` can be given where the log does not name them."""
    return parse(text_of(path, _WHAT), str(path), operation, ranks)


def parse(text: str, where: str = "this text", operation: str | None = None, ranks: int | None = None) -> NcclLog:
    """Return a log in any of its forms; what old logs and CSV do not name is given or derived from their rates."""
    text = without_colours(text)
    stripped = text.lstrip()
    if stripped.startswith("{"):
        rows, named, counted = _json(stripped, where)
    elif re.search(r"^\s*size\s*,", text, re.MULTILINE):
        rows, named, counted = _csv(text, where), None, None
    else:
        rows, named, counted = _table(text)
    if not rows:
        raise InputError(f"{where} holds no table of nccl-tests: give {_WHAT}{_reason(text)}")
    if bad := [row for row in rows if row.wrong > 0]:
        raise InputError(
            f"{where} shows wrong results ({bad[0].wrong:g} wrong values at {bad[0].nbytes} bytes): its times mean "
            "nothing; mend the network or the driver first, then run it again"
        )
    name = _operation(operation or named or _guessed(where), where)
    ranks = ranks or counted or _ranks(name, rows)
    if ranks is None or not 2 <= ranks <= MOST_RANKS:
        raise InputError(f"{where} is of {ranks or 'an unknown number of'} ranks; give their number (at least 2)")
    return NcclLog(name, ranks, tuple(rows))


def _operation(name: str | None, where: str) -> str:
    if name is None:
        return "all_reduce"  # what most logs without a name are
    plain = re.sub(r"[^a-z]", "", Path(name).name.lower().replace("perf", ""))
    if plain not in OPERATIONS:
        raise InputError(
            f"{where} is of {name!r}, which no plan asks for: give a log of {', '.join(OPERATIONS.values())}"
        )
    return OPERATIONS[plain]


def _guessed(where: str) -> str | None:
    """Return the collective that a file's name mentions, for logs that do not name it."""
    plain = re.sub(r"[^a-z]", "", Path(where).name.lower())
    return next((name for name in sorted(OPERATIONS, key=len, reverse=True) if name in plain), None)


def _ranks(operation: str, rows: list[Row]) -> int | None:
    """Return the number of ranks from the largest row's bus rate, if the collective's bus factor depends on it."""
    row = max(rows, key=lambda row: row.nbytes)
    if operation not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all") or not row.seconds[0]:
        return None
    ratio = row.bus_bytes_per_second[0] * row.seconds[0] / max(row.nbytes, 1) / (2 if operation == "all_reduce" else 1)
    return round(1 / (1 - ratio)) if 0.4 < ratio < 0.999 else None


def _reason(text: str) -> str:
    """Return what the log itself says went wrong, or an empty text."""
    found = re.search(r"(?im)^.*(nccl failure|test failure|cuda failure|error|not found|timeout).*$", text)
    return f" (it says: {found[0].strip()[:120]})" if found else ""


# ---------------------------------------------------------------------------------------------- forms


def _table(text: str) -> tuple[list[Row], str | None, int | None]:
    """Read a table: lines of numbers below a line of names; launchers may have put a rank or host before each."""
    lines = [re.sub(r"^\s*(\[[^\]]*\](\s*<\w+>:?)?|[\w.\-]+:(?=\s))\s*", "", line) for line in text.splitlines()]
    groups = Counter(m[1] for line in lines if (m := re.match(r"#\s+Rank\s+\d+(?:\s+Group\s+(\d+))?", line)))
    named = next((m[1] for line in lines if (m := re.match(r"#\s*Collective test starting:\s*(\S+)", line))), None)
    columns: tuple[str, ...] = ()
    rows = []
    for line in lines:
        columns = _columns(line) or columns
        if row := _line(line.split(), columns):
            rows.append(row)
    return rows, named, max(groups.values(), default=None)


def _columns(line: str) -> tuple[str, ...]:
    """Return the names above a table if this is their line, else nothing."""
    words = line.lstrip("# \t").replace("cputime", "time").replace("timestamp", "").split()
    return tuple(words) if words[:2] == ["size", "count"] and "time" in words else ()


def _line(cells: list[str], columns: tuple[str, ...]) -> Row | None:
    """Return the row of one size, or None if the line was cut off.

    Old versions leave the columns of operation and root empty for collectives without them; a part that was not timed
    is empty too.
    """
    if not columns or len(cells) < 3 or not cells[0].isdigit() or not cells[1].isdigit():
        return None
    blocks = [index for index, name in enumerate(columns) if name == "time"]
    width = len(columns) - blocks[-1]
    missing = max(0, len(columns) - len(cells))
    if missing == width and len(blocks) > 1:
        blocks = blocks[1:]
    elif missing > 2:
        return None
    found = [_block(cells[index - missing : index - missing + 4]) for index in blocks]
    kept = [block for block in found if block]
    return _row(int(cells[0]), cells[2], kept) if kept else None


def _block(cells: list[str]) -> tuple[float, float, float] | None:
    """Return seconds, bus rate in bytes per second, and wrong values."""
    try:
        microseconds, _, bus = (float(cell) for cell in cells[:3])
        wrong = 0.0 if len(cells) < 4 or cells[3] in ("N/A", "-1") else float(cells[3])
    except ValueError:
        return None
    return (microseconds * 1e-6, bus * 1e9, wrong) if 0 <= microseconds < math.inf else None


def _row(nbytes: int, dtype: str, blocks: list[tuple[float, float, float]]) -> Row:
    seconds, bus, wrong = zip(*blocks, strict=True)
    tolerated = [0.0 if 0 < each < 1e-2 else each for each in wrong]  # old versions write the largest difference
    return Row(nbytes, DTYPES.get(dtype, dtype), seconds, bus, max(tolerated))


def _csv(text: str, where: str) -> list[Row]:
    """Read CSV, in which a line of column names stands among others; times are in µs."""
    rows: list[Row] = []
    columns: tuple[str, ...] = ()
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise InputError(f"{where} is no complete CSV of nccl-tests ({error}): give {_WHAT}") from error
    for cells in lines:
        cells = [cell.strip() for cell in cells]
        if cells[:2] == ["size", "count"]:
            columns = tuple(cell.replace("cputime", "time") for cell in cells)
        elif columns and len(cells) >= len(columns) // 2 and cells[0].isdigit():
            blocks = [_block(cells[i : i + 4]) for i, name in enumerate(columns) if name == "time"]
            if kept := [block for block in blocks if block]:
                rows.append(_row(int(cells[0]), cells[2], kept))
    return rows


def _json(text: str, where: str) -> tuple[list[Row], str | None, int | None]:
    """Read the JSON of `-J file`; its list of devices has one entry for each process, which may drive several GPUs."""
    try:
        table = json.loads(text)
        config = table.get("config", {})
        each = max(1, int(config.get("nthreads", 1)) * int(config.get("ngpus", 1)))
        devices = len(config.get("devices", ()))
        named = str(table["args"][0]) if table.get("args") else None
        rows = [row for result in table.get("results", ()) for row in _results(result)]
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise InputError(f"{where} is no complete JSON of nccl-tests ({error}): give {_WHAT}") from error
    return rows, named, devices * each or None


def _results(result: Mapping[str, Any]) -> Iterator[Row]:
    blocks = []
    for part in ("out_of_place", "in_place"):
        if body := result.get(part):
            time = body.get("time", body.get("cpu_time"))
            blocks.append((float(time) * 1e-6, float(body["bus_bw"]) * 1e9, float(body.get("nwrong") or 0)))
    if blocks:
        yield _row(int(result["size"]), str(result["type"]), blocks)
