"""Profiler traces: recorded ones, and written ones whose times are known, in the shapes of several versions."""

from __future__ import annotations

import contextlib
import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from laconic.profile.inputs import kineto
from laconic.profile.inputs.files import InputError
from laconic.values.profile import Profile
from tests.profile.inputs.writing import Layer, Writing

SAMPLES = Path(__file__).parent / "samples"
LAYERS: list[Layer] = [((64, 32), 40, 90), ((64,), 10, 20), ((10, 64), 30, 50)]


def written(style: str = "2.4", steps: int = 3, **how: object) -> Writing:
    made = Writing(style)
    for index in range(steps):
        made.step(index, LAYERS, 25, **how)  # type: ignore[arg-type]
    return made


def check(profile: Profile, steps: int = 3) -> None:
    """The written times, gradients from the last layer to the first."""
    assert [(t.shape, t.dtype) for t in profile.model.tensors] == [(shape, "float32") for shape, _, _ in LAYERS[::-1]]
    got = [t.backward_seconds * 1e6 for t in profile.model.tensors]
    assert got == pytest.approx([backward for _, _, backward in LAYERS[::-1]])
    times = profile.model
    found = [1e6 * each.median for each in (times.forward, times.backward, times.step)]
    assert found == pytest.approx([80, 160, 25])
    assert times.forward.samples == steps


@pytest.mark.parametrize("style", ["1.8", "2.1", "2.4", "legacy"])
@pytest.mark.parametrize("bare", [False, True])
def test_versions_say_the_same(style: str, bare: bool) -> None:
    found = kineto.parse(written(style).text(bare))
    check(found)
    assert found.optimizer == "sgd"


@pytest.mark.parametrize("style", ["1.8", "2.4"])
def test_pairs_of_begin_and_end(style: str) -> None:
    made = written(style)
    made.pairs()
    check(kineto.parse(made.text()))


def test_steps_without_annotations() -> None:
    """By the optimizer's; by the order of forward and backward, where a step ends with the next one's beginning."""
    check(kineto.parse(written(note=None).text()))
    found = kineto.parse(written(note=None, optimizer=False).text())
    assert found.machine["steps"] == 3
    assert 1e6 * found.model.backward.median == pytest.approx(160)
    assert 1e6 * found.model.step.median == pytest.approx(25)


def test_of_several_batches_the_last_brings_the_gradients() -> None:
    made = Writing()
    for index in range(4):
        made.step(index, LAYERS, 25 if index % 2 else 0, note=None, optimizer=bool(index % 2))
    found = kineto.parse(made.text())
    assert found.machine["steps"] == 2
    assert len(found.model.tensors) == 3
    assert 1e6 * found.model.forward.median == pytest.approx(80 + 160 + 80)
    assert 1e6 * found.model.backward.median == pytest.approx(160)


def test_what_is_computed_again_in_backward_is_no_forward_pass() -> None:
    """Checkpointed layers: their operations stand inside of backward's events."""
    made = written()
    engines = [e for e in made.events if e["name"].endswith("AddmmBackward0")]
    for event in engines:
        made.add("aten::linear", event["ts"] + 1, 4, **{"Sequence number": 900})
    check(kineto.parse(made.text()))


def test_frames_of_python_do_not_matter() -> None:
    made = written()
    frame = {"ph": "X", "cat": "python_function", "name": "torch/autograd: AccumulateGrad", "ts": 1001.0, "dur": 3.0}
    made.events += [frame] * 5
    check(kineto.parse(made.text()))


def test_a_cut_step_does_not_count() -> None:
    made = written()
    made.step(9, LAYERS[:1], 5)
    check(kineto.parse(made.text()))


def test_gpu_gradients_are_ready_when_their_kernels_end() -> None:
    """Launched in 10 µs each, computed in 100: the host is far ahead, and the last kernel ends long after."""
    made = Writing()
    correlation = 0
    gpu = 1000.0
    for index in range(3):
        begin = made.now
        launches = [made.now + 10 * k for k in range(6)]
        first = len(made.events)
        made.step(index, [(shape, 10, 10) for shape, _, _ in LAYERS], 10, note=None)
        for launch in [*launches, launches[-1] + 10]:
            correlation += 1
            gpu = max(gpu, launch) + 100
            made.add("cudaLaunchKernel", launch + 1, 2, "call", correlation=correlation)
            made.add("gemm", gpu - 100, 100, "kernel", correlation=correlation, stream=7)
        correlation += 1  # beside them, a collective that waits for others
        made.add("cudaLaunchKernel", launches[4] + 5, 2, "call", correlation=correlation)
        made.add("ncclDevKernel_AllReduce", gpu - 250, 5000, "kernel", correlation=correlation, stream=20)
        made.add(f"ProfilerStep#{index}", begin, made.now - begin, "note")
        assert len(made.events) > first
    found = kineto.parse(made.text()).model
    assert [round(1e6 * t.backward_seconds) for t in found.tensors] == [100, 100, 100]
    assert 1e6 * found.forward.median == pytest.approx(300, abs=2)
    assert 1e6 * found.backward.median == pytest.approx(300, abs=2)
    assert 1e6 * found.step.median == pytest.approx(100, abs=2)


def nccl(made: Writing, name: str, sizes: list[int], sized_kernels: bool) -> str:
    for index, elements in enumerate(sizes):
        asked = {"Input Dims": [[elements]], "Input type": ["c10::Half"]} if not sized_kernels else {}
        made.add("nccl:all_reduce", 1100 + 40 * index, 3, "note", **asked)
        of_kernel = {"Collective name": "allreduce", "In msg nelems": elements, "dtype": "Half", "Group size": 4}
        waited = 25 * (index > 1)  # for another worker
        made.add(name, 1110 + 40 * index, elements / 100 + waited, "kernel", **(of_kernel if sized_kernels else {}))
    return made.text(distributedInfo={"backend": "nccl", "rank": 0, "world_size": 4})


@pytest.mark.parametrize(
    ("name", "sized"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)", False),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(x)", True),
    ],
)
def test_collectives_become_links(name: str, sized: bool) -> None:
    """Two bytes an element; a worker of four sends 1.5 times what it hands over; of one size the shortest counts."""
    found = kineto.parse(nccl(written(), name, [1000, 4000, 1000], sized))
    assert found.workers == 4 and found.links is not None
    (times,) = found.links.operations
    assert (times.operation, times.dtype) == ("all_reduce", "float16")
    assert [p.wire_bytes for p in times.points] == [3000, 12000]
    assert [1e6 * p.alone_seconds for p in times.points] == pytest.approx([10, 40])


def test_collectives_without_sizes_say_nothing() -> None:
    made = written()
    made.add("ncclKernel_AllReduce_RING_LL_Sum_float", 1100, 3, "kernel")
    assert kineto.parse(made.text()).links is None


def test_shapes_from_the_optimizer_where_gradients_have_none() -> None:
    made = Writing(shapes=False)
    for index in range(3):
        begin = made.now + 240
        made.step(index, LAYERS, 25)
        dims = [[list(shape) for shape, _, _ in LAYERS]] * 2
        made.add("aten::_foreach_add_", begin + 1, 5, **{"Input Dims": dims, "Input type": ["TensorList"] * 2})
    check(kineto.parse(made.text()))


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 2000), max_size=3).map(tuple), st.integers(1, 10**6), st.integers(3, 10**6)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 10**5),
    st.sampled_from(["1.8", "2.1", "2.4"]),
)
def test_what_is_written_is_read(layers: list[Layer], update: int, style: str) -> None:
    made = Writing(style)
    for index in range(2):
        made.step(index, layers, update)
    found = kineto.parse(made.text()).model
    assert [t.shape for t in found.tensors] == [shape for shape, _, _ in layers[::-1]]
    assert [1e6 * t.backward_seconds for t in found.tensors] == pytest.approx([b for _, _, b in layers[::-1]], abs=0.01)
    assert 1e6 * found.forward.median == pytest.approx(sum(f for _, f, _ in layers), abs=0.01)
    assert 1e6 * found.step.median == pytest.approx(update, abs=0.01)


# ------------------------------------------------------------------------------------------ recorded


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def record(path: Path, shapes: bool, stepping: bool, checkpointed: bool = False) -> nn.Module:
    torch.manual_seed(0)
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    x, y = torch.randn(8, 1, 8, 8), torch.randint(3, (8,))
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3) if stepping else None
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=shapes, schedule=schedule) as profiler:
        for _ in range(5):
            optimizer.zero_grad()
            out = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False) if checkpointed else module(x)
            nn.functional.cross_entropy(out, y).backward()
            optimizer.step()
            if stepping:
                profiler.step()
    profiler.export_chrome_trace(str(path))
    return module


@pytest.mark.long
@pytest.mark.parametrize(
    ("stepping", "checkpointed", "name"),
    [(True, False, "trace.json"), (False, False, "trace.json.gz"), (True, True, "trace.json.gz")],
)
def test_this_torch(tmp_path: Path, stepping: bool, checkpointed: bool, name: str) -> None:
    """Every parameter once, the head's first; the parts add up to no more than the trace."""
    module = record(tmp_path / name, True, stepping, checkpointed)
    found = kineto.read(tmp_path / name)
    assert sorted(t.shape for t in found.model.tensors) == sorted(tuple(p.shape) for p in module.parameters())
    assert {t.shape for t in found.model.tensors[:2]} == {(3,), (3, 16)}
    assert {t.shape for t in found.model.tensors[-2:]} == {(4,), (4, 1, 3, 3)}
    assert found.machine["steps"] == (3 if stepping else 5)
    parts = (found.model.forward, found.model.backward, found.model.step)
    assert all(part.median > 0 for part in parts)
    if stepping:
        raw = (tmp_path / name).read_bytes()
        events = json.loads(gzip.decompress(raw) if name.endswith("gz") else raw)["traceEvents"]
        steps = sorted((e["ts"], e["dur"]) for e in events if e["name"].startswith("ProfilerStep#"))
        assert sum(part.low or 0 for part in parts) <= 1e-6 * max(duration for _, duration in steps)
        assert all(a < b for (a, _), (b, _) in pairwise(steps))


@pytest.mark.long
def test_without_shapes_the_way_out_is_said(tmp_path: Path) -> None:
    record(tmp_path / "t.json", False, True)
    with pytest.raises(
        InputError, match=r"6 gradients but does not say their shapes: record with .*record_shapes=True"
    ):
        kineto.read(tmp_path / "t.json")
    with pytest.raises(InputError, match="8 gradients but does not say"):
        kineto.read(SAMPLES / "cuda_without_shapes.json.gz")


def test_a_recorded_gpu() -> None:
    """Torch 2.11 on an H200: three steps of a small network, of which the GPU computed while the host launched."""
    found = kineto.read(SAMPLES / "cuda.json.gz")
    assert found.machine["gpu"] is True and found.machine["steps"] == 3
    assert [t.shape for t in found.model.tensors] == [
        (10,), (10, 256), (256,), (256, 16384), (16,), (16,), (16, 3, 3, 3), (16,)
    ]  # fmt: skip
    assert found.model.backward.median == pytest.approx(890e-6, rel=0.01)
    assert sum(t.backward_seconds for t in found.model.tensors) == pytest.approx(found.model.backward.median)
    assert Profile.from_json(found.to_json()) == found


def test_a_recorded_pair_of_workers() -> None:
    """Torch 2.13, DDP over gloo: its two buckets, of which each worker of two sends what it hands over."""
    found = kineto.read(SAMPLES / "gloo.json.gz")
    assert found.workers == 2 and found.links is not None and len(found.model.tensors) == 6
    (times,) = found.links.operations
    assert (times.operation, [p.wire_bytes for p in times.points]) == ("all_reduce", [320, 76584])
    assert found.model.step.median < 1e-3 < times.points[0].alone_seconds  # waiting is no part of the step


# ------------------------------------------------------------------------------------------ malformed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "no complete JSON"),
        (written().text()[:-100], "no complete JSON.*killed"),
        ("3", "no list of traceEvents"),
        ('{"traceEvents": 4}', "no list of traceEvents"),
        ('{"traceEvents": []}', "no event that lasted"),
        ('{"traceEvents": [null, 4, {}, {"ph": "X", "name": 3}, {"ph": "X", "ts": "x"}]}', "no event that lasted"),
        ('{"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}]}', "no AccumulateGrad event"),
        ("[" * 100_000, "no complete JSON"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match=message):
        kineto.read(tmp_path / "t.json")


def test_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        kineto.read(tmp_path / "none.json")
    whole = gzip.compress(written().text().encode())
    (tmp_path / "half.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        kineto.read(tmp_path / "half.json.gz")


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_events_never_crash(drawn: st.DataObject) -> None:
    """Whatever is missing or of another kind: a profile, or a sentence."""
    made = written()
    nccl(made, "ncclDevKernel_AllReduce_Sum_f16_RING_LL", [1000, 4000], drawn.draw(st.booleans()))
    values = st.sampled_from([None, -1, "x", [], {}, 1e300, float("nan")])
    for _ in range(drawn.draw(st.integers(1, 6))):
        row = made.events[drawn.draw(st.integers(0, len(made.events) - 1))]
        args = row["args"] if isinstance(row.get("args"), dict) else {}
        part = args if args and drawn.draw(st.booleans()) else row
        part[drawn.draw(st.sampled_from([*part]))] = drawn.draw(values)
    with contextlib.suppress(InputError):
        kineto.parse(made.text())
