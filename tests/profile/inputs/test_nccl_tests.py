"""Logs of nccl-tests: tables as old and new versions print them, CSV and JSON, and logs that are none."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.profile.inputs import nccl_tests
from laconic.profile.inputs.files import InputError

Rows = list[tuple[int, float, float]]  # bytes, µs out of place and in place
ROWS: Rows = [(1024, 30.5, 29.9), (1048576, 95.25, 97.5), (1073741824, 12000.0, 11900.0)]


def rates(nbytes: int, microseconds: float, factor: float) -> tuple[float, float]:
    algorithm = nbytes / microseconds / 1e3
    return algorithm, factor * algorithm


def ranks_lines(ranks: int, group: bool) -> list[str]:
    more = " Group  0" if group else ""
    return [f"#  Rank {r:2}{more} Pid {100 + r:6} on      host device {r:2} [0x07] GPU" for r in range(ranks)]


def table(rows: Rows, ranks: int = 8, style: str = "new", wrong: str = "0", factor: float | None = None) -> str:
    """`first`: no root and errors as differences; `bare`: nothing under redop and root; `new`: versions since 2.17."""
    factor = 2 * (ranks - 1) / ranks if factor is None else factor
    lines = ["# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20", "#"]
    if style == "new":
        lines.insert(0, "# Collective test starting: all_reduce_perf")
    lines += ["# Using devices", *ranks_lines(ranks, style == "new"), "#"]
    names = ["size", "count", "type", "redop", *(["root"] if style != "first" else [])]
    block = ["time", "algbw", "busbw", "error" if style == "first" else "#wrong"]
    lines += ["#                                out-of-place                       in-place"]
    lines += ["# " + "  ".join(names + 2 * block), "#  (B)  (elements)   (us)  (GB/s)  (GB/s)   (us)  (GB/s)  (GB/s)"]
    middle = {"first": "sum", "bare": "", "new": "sum     -1", "old": "sum      0"}[style]
    for nbytes, *both in rows:
        cells = []
        for taken in both:
            algorithm, bus = rates(nbytes, taken, factor)
            cells.append(f"{taken:7.2f}  {algorithm:6.2f}  {bus:6.2f}  {'4e-07' if style == 'first' else wrong}")
        lines.append(f"{nbytes:12}  {nbytes // 4:12}  float  {middle}  {'  '.join(cells)}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 80.1", "#"])


def as_json(rows: Rows, devices: int, gpus: int) -> str:
    results = []
    for n, *both in rows:
        parts = [{"time": t, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0.0} for t in both]
        row = {"size": n, "count": n // 4, "type": "float", "redop": "sum", "root": "    -1"}
        results.append({**row, "out_of_place": parts[0], "in_place": parts[1]})
    config = {"nthreads": 1, "ngpus": gpus, "devices": [{"rank": r * gpus} for r in range(devices)]}
    return json.dumps(
        {"version": 2, "args": ["./build/all_reduce_perf", "-b", "8"], "config": config, "results": results}
    )


def as_csv(rows: Rows, factor: float) -> str:
    lines = [",,,,,out-of-place,out-of-place,out-of-place,out-of-place,in-place,in-place,in-place,in-place,,"]
    lines += ["size, count, type, redop, root, time, algbw, busbw, #wrong, time, algbw, busbw, #wrong, nthreads, ngpus"]
    lines += ["(B), (elements),,,,(us),(GB/s),(GB/s),,(us),(GB/s),(GB/s),,,"]
    for n, a, b in rows:
        parts = ", ".join(f"{t}, {rates(n, t, factor)[0]:f}, {rates(n, t, factor)[1]:f}, 0" for t in (a, b))
        lines.append(f"{n}, {n // 4}, float, sum, -1, {parts},1,8")
    return "\n".join([*lines, ""])


@pytest.mark.parametrize(
    "text",
    [
        table(ROWS),
        table(ROWS, style="old"),
        table(ROWS, style="first"),
        table(ROWS, style="bare"),
        table(ROWS, wrong="N/A"),
        "\x1b[1m" + table(ROWS) + "\x1b[0m",
        "\n".join(f"[1,0]<stdout>:{line}" for line in table(ROWS).splitlines()),
        "\n".join(f"0: {line}" for line in table(ROWS).splitlines()),
        "NCCL INFO nothing\n" + table(ROWS).replace("\n", "\r\n"),
        as_json(ROWS, 1, 8),
        as_json(ROWS, 4, 2),
        as_csv(ROWS, 1.75),
    ],
)
def test_all_forms_say_the_same(text: str) -> None:
    log = nccl_tests.parse(text)
    assert (log.operation, log.ranks) == ("all_reduce", 8)
    assert [row.nbytes for row in log.rows] == [nbytes for nbytes, *_ in ROWS]
    (times,) = log.links().operations
    assert (times.operation, times.dtype) == ("all_reduce", "float32")
    assert [p.wire_bytes for p in times.points] == pytest.approx([1.75 * nbytes for nbytes, *_ in ROWS])
    assert [1e6 * p.alone_seconds for p in times.points] == pytest.approx([29.9, 95.25, 11900.0])
    assert times.seconds_per_byte == pytest.approx(11900e-6 / (1.75 * 2**30), rel=0.02)


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.integers(2, 2**28).map(lambda n: 4 * n), st.tuples(*[st.integers(1, 10**7)] * 2), min_size=1, max_size=20
    ),
    st.integers(2, 300),
    st.sampled_from(["new", "old", "first", "bare"]),
)
def test_generated_tables(rows: dict[int, tuple[int, int]], ranks: int, style: str) -> None:
    listed = [(nbytes, float(a), float(b)) for nbytes, (a, b) in sorted(rows.items())]
    log = nccl_tests.parse(table(listed, ranks, style))
    assert log.ranks == ranks
    assert [(row.nbytes, *(1e6 * s for s in row.seconds)) for row in log.rows] == [pytest.approx(row) for row in listed]
    points = log.links().operations[0].points
    assert [p.wire_bytes for p in points] == sorted(p.wire_bytes for p in points)
    assert all(a.alone_seconds <= b.alone_seconds for a, b in pairwise(points))


@pytest.mark.parametrize(
    ("program", "operation", "factor", "sent"),
    [
        ("all_gather_perf", "all_gather", 7 / 8, 7 / 8),
        ("reduce_scatter_perf", "reduce_scatter", 7 / 8, 7 / 8),
        ("alltoall_perf", "all_to_all", 7 / 8, 7 / 8),
        ("broadcast_perf", "broadcast", 1.0, 3.0),
    ],
)
def test_other_collectives(tmp_path: Path, program: str, operation: str, factor: float, sent: float) -> None:
    """By the name in the log, or by that of the file; what is sent is what the virtual engine's messages send."""
    new = table(ROWS, factor=factor).replace("all_reduce_perf", program)
    old = table(ROWS, style="bare", factor=factor)
    (tmp_path / f"{program}.log").write_text(old)
    for log in (nccl_tests.parse(new), nccl_tests.read(tmp_path / f"{program}.log")):
        assert log.operation == operation
        assert log.links().operations[0].points[0].wire_bytes == pytest.approx(sent * 1024)


def test_ranks_follow_from_the_rates_where_nobody_says_them() -> None:
    for ranks in (2, 4, 16, 64):
        text = "\n".join(line for line in table(ROWS, ranks, "old").splitlines() if "Rank" not in line)
        assert nccl_tests.parse(text).ranks == ranks
    assert nccl_tests.parse(table(ROWS), ranks=5).ranks == 5


def test_a_part_that_was_not_timed_and_lines_that_were_cut() -> None:
    lines = table(ROWS).splitlines()
    only = next(line for line in lines if line.strip().startswith("1024 ")).split()
    half = "  ".join(only[:5] + only[9:])
    log = nccl_tests.parse("\n".join([*lines[:-3], half.replace("1024", "2048", 1), "  4194304   1048576  float  su"]))
    assert [row.nbytes for row in log.rows] == [1024, 1048576, 1073741824, 2048]
    assert log.rows[-1].seconds == pytest.approx((29.9e-6,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("hello", "holds no table of nccl-tests: give the output"),
        ("host: Test NCCL failure common.cu:958 'unhandled system error'", "it says: .*unhandled system error"),
        ("\n".join(table(ROWS).splitlines()[:14]), "holds no table"),
        (table(ROWS, wrong="7"), "shows wrong results .7 wrong values at 1024 bytes"),
        (table(ROWS, 1, factor=0.0), "is of 1 ranks"),
        (table([(0, 5.0, 5.0)]), "unknown number|0 bytes only"),
        (table(ROWS).replace("all_reduce_perf", "gather_perf"), "is of 'gather_perf', which no plan asks for"),
        (as_json(ROWS, 1, 8)[:-40], "no complete JSON"),
        ('{"results": [{"size": 4}]}', "holds no table"),
        ('{"results": 4}', "no complete JSON"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        nccl_tests.read(tmp_path / "log.txt").links()


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200) | st.integers(0, 1500).map(lambda n: table(ROWS)[:n]))
def test_nothing_crashes(text: str) -> None:
    with contextlib.suppress(InputError):
        nccl_tests.parse(text)
