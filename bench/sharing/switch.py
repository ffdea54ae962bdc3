"""Switching to a model that waits in pinned memory: in groups, as a whole, by layers; and processes that stand by."""

from __future__ import annotations

import copy
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from bench.sharing.captured import Captured
from bench.sharing.cold import BATCH, from_nothing
from bench.sharing.models import kernel_seconds, synchronize
from bench.sharing.residual_net import residual_net
from bench.sharing.rows import Rows, spread
from bench.sharing.workers import Failed
from torch import Tensor, nn

from laconic.cluster.sharing.pipeswitch import Transfer, finish, group
from laconic.cluster.sharing.switching import Switched

STARTING = 90.0


def made(device: str, small: bool) -> tuple[nn.Module, Tensor]:
    """Return the net and a batch."""
    torch.manual_seed(0)
    with torch.device(device):
        model = residual_net((1, 1)) if small else residual_net()
        size = 32 if small else 224
        return model.eval(), torch.randn(BATCH, 3, size, size)


def pipeline(rows: Rows, device: str, small: bool, repeats: int) -> tuple[int, ...]:
    """Measure the ways to start a model, beside what the model of PipeSwitch says; return the chosen groups."""
    model, x = made(device, small)
    waiting = copy.deepcopy(model).cpu()
    with torch.no_grad():
        right = model(x)
    switched = Switched(model, x)
    nbytes, compute, way = switched.nbytes, switched.layer_seconds(x, repeats=9), switched.transfer(9)
    begin = time.perf_counter()
    chosen = group(nbytes, compute, way)
    searched = time.perf_counter() - begin
    with torch.no_grad():
        kernels = kernel_seconds(partial(switched.model, x)) if device == "cuda" else 0.0
    rows.add(
        "switch",
        case="profile",
        layers=len(nbytes),
        megabytes=sum(nbytes) / 1e6,
        forward_ms=1e3 * sum(compute),
        kernel_ms=1e3 * kernels,
        gigabytes_a_second=way.bytes_per_second / 1e9,
        call_us=1e6 * way.call_seconds,
        search_seconds=searched,
        layer_bytes=nbytes,
        layer_ms=[1e3 * seconds for seconds in compute],
    )
    count = len(nbytes)
    groupings = {"one group": (count,), "each layer": tuple(range(1, count + 1)), "pipelined": chosen.ends}

    def in_turn() -> Tensor:
        switched.bring()
        synchronize(device)
        with torch.no_grad():
            return switched.model(x)

    ways = {name: partial(switched.start, ends, x) for name, ends in groupings.items()}
    _compare(rows, "", {"transfer, then execute": in_turn, **ways}, groupings, nbytes, compute, way, right, repeats)
    try:
        _as_graphs(rows, switched, x, way, right, repeats)
    except Exception as error:
        rows.add("switch", case="graphs", failed=f"{type(error).__name__}: {str(error)[:300]}")
    slow = Transfer(12e9, way.call_seconds)
    whole, best = finish(nbytes, compute, (count,), slow), group(nbytes, compute, slow)
    rows.add(
        "switch",
        case="the model alone, at 12 GB/s with these layers",
        predicted_ms=1e3 * best.seconds,
        predicted_whole_ms=1e3 * whole,
        predicted_faster_by=whole / best.seconds,
    )
    plain = []
    for _ in range(repeats):
        fresh = copy.deepcopy(waiting)
        synchronize(device)
        begin = time.perf_counter()
        with torch.no_grad():
            fresh.to(device)(x)
        synchronize(device)
        plain.append(time.perf_counter() - begin)
    rows.add("switch", case="model.to(device), from memory that is not pinned", ms=spread([1e3 * t for t in plain]))
    return chosen.ends


def _compare(
    rows: Rows,
    prefix: str,
    ways: Mapping[str, Callable[[], Tensor]],
    groupings: Mapping[str, Sequence[int]],
    nbytes: Sequence[float],
    compute: Sequence[float],
    way: Transfer,
    right: Tensor,
    repeats: int,
) -> None:
    """Time ways to start a model, in turns, beside what is predicted of their groups."""
    device = right.device.type
    taken: dict[str, list[float]] = {name: [] for name in ways}
    off = torch.zeros((), device=right.device)
    for turn in range(3 * repeats + 2):
        for name, start in ways.items():
            synchronize(device)
            begin = time.perf_counter()
            found = start()
            synchronize(device)
            if turn > 1:
                taken[name].append(time.perf_counter() - begin)
            off = torch.maximum(off, (found - right).abs().max() / right.abs().max())  # keeps what is no number
    medians = {name: spread(values) for name, values in taken.items()}
    for name in ways:
        ends = groupings.get(name, (len(nbytes),))
        predicted = finish(nbytes, compute, ends, way)
        rows.add(
            "switch",
            case=prefix + name,
            ms={key: 1e3 * value for key, value in medians[name].items()},
            predicted_ms=1e3 * predicted,
            error=predicted / medians[name]["median"] - 1,
            groups=len(ends),
            pipelined_is_faster_by=medians[name]["median"] / medians["pipelined"]["median"],
        )
    ends = list(groupings["pipelined"])
    rows.add("switch", case=f"{prefix}outputs", largest_relative_difference=float(off), ends=ends)


def _as_graphs(rows: Rows, switched: Switched, x: Tensor, way: Transfer, right: Tensor, repeats: int) -> None:
    """Do the same with stages that are CUDA graphs: a bottleneck each, and what is before and behind these."""
    parts = list(switched.model.children())
    stages = [nn.Sequential(*parts[:4]), *parts[4:-3], nn.Sequential(*parts[-3:])]
    captured = Captured(switched, stages, x)
    nbytes = captured.nbytes
    compute = captured.stage_seconds() if x.device.type == "cuda" else [1e-3] * len(stages)
    chosen, count = group(nbytes, compute, way), len(stages)
    rows.add("switch", case="graphs: profile", stages=count, forward_ms=1e3 * sum(compute))
    groupings = {"one group": (count,), "each stage": tuple(range(1, count + 1)), "pipelined": chosen.ends}

    def in_turn() -> Tensor:
        switched.bring()
        synchronize(x.device.type)
        return captured.compute()

    ways = {name: partial(captured.start, ends) for name, ends in groupings.items()}
    ways = {"transfer, then execute": in_turn, **ways}
    _compare(rows, "graphs: ", ways, groupings, nbytes, compute, way, right, repeats)
    slow = Transfer(12e9, way.call_seconds)
    whole, best = finish(nbytes, compute, (count,), slow), group(nbytes, compute, slow)
    rows.add("switch", case="graphs: the model alone, at 12 GB/s", predicted_faster_by=whole / best.seconds)


def standing_by(pipe: Connection, ends: tuple[int, ...], device: str, small: bool) -> None:
    """Make everything ready, then come to an output whenever told to."""
    torch.set_num_threads(1)
    model, x = made(device, small)
    switched = Switched(model, x)
    switched.start(ends, x)
    synchronize(device)
    pipe.send("ready")
    while pipe.recv() == "go":
        switched.start(ends, x).sum().item()
        pipe.send(time.monotonic())


def _child(target: Callable[..., None], *given: Any) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *given), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _answer(pipe: Connection, seconds: float) -> Any:
    if not pipe.poll(seconds):
        raise Failed(f"a process did not answer within {seconds:.0f} s")
    try:
        return pipe.recv()
    except (EOFError, OSError):
        raise Failed("a process has ended without a word") from None


def standby(rows: Rows, device: str, small: bool, repeats: int, ends: tuple[int, ...]) -> None:
    """Measure the time to a first output: of processes that begin from nothing, and of one that stands by."""
    cold: list[list[float]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pt"
        torch.save(made("cpu", small)[0].state_dict(), path)
        for _ in range(1 if small else min(repeats, 3)):
            asked = time.monotonic()
            process, pipe = _child(from_nothing, str(path), device, small)
            try:
                times = [asked, *_answer(pipe, STARTING)]
                cold.append([b - a for a, b in pairwise(times)])
            finally:
                process.join(5)
                process.kill()
    parts = ("starting Python", "importing torch", "context", "weights", "first output")
    rows.add(
        "standby",
        case="from nothing",
        seconds=spread([sum(row) for row in cold]),
        **{name: spread([row[i] for row in cold]) for i, name in enumerate(parts)},
    )
    process, pipe = _child(standing_by, ends, device, small)
    try:
        _answer(pipe, STARTING)
        warm = []
        for _ in range(3 * repeats):
            asked = time.monotonic()
            pipe.send("go")
            warm.append(_answer(pipe, 30.0) - asked)
        pipe.send("end")
    finally:
        process.join(5)
        process.kill()
    found = spread(warm)
    faster = spread([sum(row) for row in cold])["median"] / found["median"]
    rows.add("standby", case="standing by", seconds=found, faster_by=faster)


def switch(rows: Rows, device: str, small: bool, repeats: int) -> None:
    """Measure both."""
    ends = pipeline(rows, device, small, repeats)
    if rows.time_for("standby", "processes", 40 if not small else 0):
        standby(rows, device, small, repeats, ends)
