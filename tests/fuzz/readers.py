"""Every reader of files and texts, each with a valid input that the project itself makes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import msgspec
import torch

import laconic
from laconic.experiments.folder import Folder, read_settings
from laconic.experiments.rivals.text import check
from laconic.experiments.tuning_protocol import CachedTrials, Curve, Trial
from laconic.frontier.answer import Frontier
from laconic.frontier.orderings import judge
from laconic.frontier.short import short_runs
from laconic.frontier.tables import tables
from laconic.launch.net import state as network_state
from laconic.launch.request import read_slowness, read_stragglers, read_target
from laconic.liveness.detection import Lost
from laconic.parallel.hybrid.runs import NONE
from laconic.planner import runs as trainings
from laconic.planner.iteration_models import IterationTable, iteration_inputs, iteration_table
from laconic.planner.networks import links_of
from laconic.planner.risk import TABLE, measured_losses, of_table
from laconic.planner.validation import runs, vtrain
from laconic.planner.validation.claims import NCCL, POLLUX, PUBLISHED
from laconic.planner.validation.sections import recompute
from laconic.planner.values import Advice
from laconic.profile.gpus import gpu, measured, profile_of
from laconic.profile.inputs import kineto, nvidia_topo
from laconic.profile.zoo import canonical
from laconic.report.frontier_json import to_json
from laconic.report.page.page import write as write_page
from laconic.report.validation import all_as_json
from laconic.rpc import control, snapshots
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import Limits, decode_answer, decode_envelope, encode
from laconic.rpc.keys import Keys
from laconic.runtime.timeline import Timeline
from laconic.strategy import Strategy
from laconic.units import bits_per_second, seconds
from laconic.values.profile import Profile
from laconic.values.run_config import VARIABLE, RunConfig
from laconic.values.worker_speeds import WorkerSpeeds
from laconic.virtual.membership import lives
from laconic.virtual.script import VirtualSetup
from laconic.worker import ActorMessage
from tests.frontier.rows import ladder
from tests.fuzz.trying import Subject, write
from tests.profile.inputs.test_nccl_tests import ROWS, as_csv, as_json
from tests.profile.inputs.test_nccl_tests import table as nccl_table
from tests.profile.inputs.test_topo import machine
from tests.profile.inputs.writing import Writing
from tests.profile.test_values import profile
from tests.report.page import samples

STRATEGIES = (
    "bsp / topk(0.01)+ef / allreduce / wfbp(25MiB)",
    "local(period=8) / qsgd(levels=7)",
    "[bsp until step 500, then cast_fp16]@node > [cast_bf16+ef]@site",
    '{matrix: cast_bf16+ef, "head.*": none, numel>=4096: cast_fp16, else: none}',
    "pytorch_ddp / cast_fp16",
)
NETWORK = b"""[network]
lanes = 2
levels = [{workers = 1, bandwidth = "10Gbit", latency = "10us"}, {workers = 2, bandwidth = "1Gbit", latency = "1ms"}]
links = {"3" = "100Mbit"}

[compute]
forward = "5ms"
backward = "10ms"
step = 0.001
slowness = [1, 1, 2.5, 1]
straggling = {probability = 0.2, factor = 3}
trace = [[1, 2], [1.5]]
seed = 3

[[events]]
at = "2s"
worker = 3
what = "die"
[[events]]
at = 3
worker = 3
what = "return"
"""


def readers() -> Iterator[Subject]:
    """Yield every reader."""
    yield from _texts()
    yield from _files()
    yield from _published()
    yield from _folders()
    yield from _messages()


def _lines(*lines: str) -> dict[str, bytes]:
    return {f"{number}": line.encode() for number, line in enumerate(lines)}


def _each_text(read: Callable[[str], object]) -> Callable[[Path], object]:
    """Give every file's text to a reader of texts, as an argument of a command line arrives."""

    def read_all(folder: Path) -> object:
        return [read(os.fsdecode(path.read_bytes())) for path in sorted(folder.iterdir())]

    return read_all


def _texts() -> Iterator[Subject]:
    yield Subject("strategy", _lines(*STRATEGIES), _each_text(Strategy.parse))
    yield Subject(
        "strategy or rival",
        _lines("torch:ddp16(bucket_cap_mb=25)", "torch:powersgd(rank=2)"),
        _each_text(lambda text: check(text, virtual=False, dry_run=False, servers=0)),
    )
    yield Subject("rate", _lines("100Mbit", "1Gb/s", "1000bit", "2.5kbit"), _each_text(bits_per_second))
    yield Subject("time", _lines("50us", "25ms", "1s", "0.5"), _each_text(seconds))
    yield Subject("slowness", _lines("1,1,1,5"), _each_text(lambda text: WorkerSpeeds.read(read_slowness(text), ())))
    yield Subject("stragglers", _lines("0.2x3"), _each_text(lambda text: WorkerSpeeds.read((), read_stragglers(text))))
    yield Subject("target", _lines("loss=1.6"), _each_text(read_target))
    yield Subject("model's name", _lines("resnet50", "GPT-2"), _each_text(canonical))
    yield Subject(
        "GPU's name", _lines("v100", "a100"), _each_text(lambda text: profile_of("ResNet-50", gpu(text), batch=8))
    )
    yield Subject("run's settings", _lines(RunConfig(workers=2, targets={"loss": 1.0}).to_env()[VARIABLE]), _settings)
    yield Subject("lost rank", _lines(Lost((1,), "host", "silent", "look").encode()), _each_text(Lost.decode))


def _settings(folder: Path) -> object:
    text = (folder / "0").read_bytes()
    with patch.dict(os.environ):
        os.environ[VARIABLE] = os.fsdecode(text.replace(b"\0", b""))  # an environment has no zero bytes
        return RunConfig.current()


def _files() -> Iterator[Subject]:
    yield Subject("profile", {"p.json": profile().to_json().encode()}, lambda folder: Profile.read(folder / "p.json"))
    yield Subject("network file", {"n.toml": NETWORK}, _network)
    logs = {"log.txt": nccl_table(ROWS), "log.csv": as_csv(ROWS, 1.75), "log.json": as_json(ROWS, 2, 4)}
    for name, text in logs.items():
        yield Subject(
            f"nccl-tests, {name[4:]}",
            {name: text.encode()},
            lambda folder, name=name: links_of(str(folder / name), 8),  # type: ignore[misc]
        )
    yield Subject(
        "nvidia-smi topo",
        {"topo.txt": machine(4, lambda a, b: "NV4" if "1" in a + b else "SYS", nics=1).encode()},
        lambda folder: nvidia_topo.read(folder / "topo.txt").levels(),
    )
    yield Subject("PyTorch trace", {"t.json": _trace()}, lambda folder: kineto.read(folder / "t.json"))
    yield Subject("measured losses", {"a.csv": _head(TABLE, 8)}, _losses)
    yield Subject("measured runs", {"s.csv": _head(TABLE.parent / "steps.csv", 8)}, _runs)
    yield Subject("trainings", {"bytes-breadth.jsonl": _trainings()}, _frontier)
    yield Subject("plan", {"plan.json": samples.advice().to_json().encode()}, _plan)
    yield Subject("iterations", {"i.json": _iteration_table()}, _iterations)
    yield Subject("timeline", {"trace.json": _timeline()}, lambda folder: Timeline.read(folder / "trace.json"))
    yield _checkpoint()
    yield Subject("snapshot", {"snapshot.1": _snapshot()}, lambda folder: snapshots.read(folder / "snapshot.1"))
    yield Subject("keys", {"keys": Keys.make().to_text().encode()}, lambda folder: Keys.read(folder / "keys"))
    yield Subject("network's state", {"n.json": _network_state()}, _shaped)


def _network(folder: Path) -> object:
    setup = VirtualSetup.read(str(folder / "n.toml"), 4)
    return lives(setup.events, 4), setup.network.capacities, setup.compute


def _trace() -> bytes:
    writing = Writing()
    for step in range(3):
        writing.step(step, [((8, 8), 20, 30), ((8,), 10, 15)], 5)
    return writing.text().encode()


def _head(path: Path, lines: int) -> bytes:
    return b"".join(path.read_bytes().splitlines(keepends=True)[:lines])


def _losses(folder: Path) -> object:
    return list(of_table(measured_losses.__wrapped__(folder / "a.csv")))


def _runs(folder: Path) -> object:
    return runs.read((folder / "s.csv").read_bytes().decode(errors="replace")).errors


def _trainings() -> bytes:
    made = ladder({"diloco(30)": 0.01, "bsp / two_bit+ef": 0.02, "bsp / two_bit": 0.1}, seeds=(1, 2), noise=0.001)
    return b"".join(msgspec.json.encode(run) + b"\n" for run in made)


def _frontier(folder: Path) -> object:
    """Read trainings, make all tables of them, and write these as JSON; the map, which takes longer, is left out."""
    found = tables(trainings.read(folder))
    short = tuple((table, one) for table in found for one in short_runs(table))
    return to_json(Frontier("bytes", 8, 1e9, 1e9, found, judge(found), short))


def _plan(folder: Path) -> object:
    path = folder / "plan.json"
    Advice.from_json(path.read_bytes().decode(errors="replace"), str(path))
    return _page([path])


def _page(paths: Sequence[Path]) -> object:
    """Write the page elsewhere, whole or not at all."""
    with tempfile.TemporaryDirectory() as out:
        try:
            return write_page(paths, Path(out) / "page.html").read_text().index("</html>")
        finally:
            assert {path.name for path in Path(out).iterdir()} <= {"page.html"}, "a page half-written"


def _iteration_table() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {"p.json": profile().to_json().encode()})
        return iteration_table(iteration_inputs(f"{folder}/p.json", None, 4)).to_json().encode()


def _iterations(folder: Path) -> object:
    return IterationTable.from_json((folder / "i.json").read_bytes().decode(errors="replace"))


def _timeline() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        samples.timeline(steps=2).write(Path(folder) / "trace.json")
        return (Path(folder) / "trace.json").read_bytes()


def _checkpoint() -> Subject:
    model = torch.nn.Linear(2, 2)
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), 0.1), "bsp")
    files = _kept(lambda folder: laconic.checkpoint(folder, model, optimizer, epoch=1))
    return Subject("checkpoint", files, lambda folder: laconic.resume(folder, model, optimizer))


def _snapshot() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        snapshots.write(Path(folder) / "s", {"version": 3, "names": ["a"], "flat": torch.arange(5.0)})
        return (Path(folder) / "s").read_bytes()


def _network_state() -> bytes:
    return msgspec.json.encode(network_state.NetworkState("n", "ab", 2, 0.01, (1e8, None)))


def _shaped(folder: Path) -> object:
    with patch.object(network_state, "FOLDER", folder):
        return network_state.load_all()


# ---------------------------------------------------------------------------------------------- published measurements


def _table(*rows: Sequence[object]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def throughputs() -> dict[str, bytes]:
    """Return a small folder with tables like those of the survey (arXiv 2005.13247), with figures of our own."""
    inputs = [
        ("kind", "name", "field", "value", "unit"),
        ("model", "ResNet-50", "local_batch", 64, "count"),
        ("model", "ResNet-50", "single_gpu_iteration", 230, "ms"),
        ("model", "BERT-Base", "local_batch", 64, "count"),
        ("model", "BERT-Base", "single_gpu_iteration", 500, "ms"),
        ("model", "BERT-Large", "local_batch", 8, "count"),
        ("model", "BERT-Large", "single_gpu_iteration", 300, "ms"),
        ("network", "10GbE", "throughput_16KiB", 2, "Gb/s"),
        ("network", "10GbE", "throughput_1MiB", 9, "Gb/s"),
        ("network", "PCIe", "allreduce_336M_4gpu", 500, "ms"),
    ]
    measured = [
        ("network", "model", "method", "g4", "g4_sd", "g8", "g8_sd", "g16", "g16_sd", "g32", "g32_sd"),
        *(("10GbE", "ResNet-50", m, 900, 1.3, 1500, 8.5, "", "", "", "") for m in ("BSP-A2A", "WFBP-A2A", "MG-WFBP")),
    ]
    return {"ddl-benchmarks/inputs.csv": _table(*inputs), "ddl-benchmarks/throughput.csv": _table(*measured)}


def nccl_times() -> dict[str, bytes]:
    """Return a small folder with a table like aiconfigurator's."""
    names = ("system", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    rows = [
        (system, "all_reduce", "half", gpus, 2**power, 0.01 * gpus + 2**power / 1e8)
        for system in ("a100_sxm", "h100_sxm")
        for gpus in (2, 4, 8)
        for power in range(10, 24, 3)
    ]
    return {"nccl/nccl_perf.csv": _table(names, *rows)}


def curves() -> dict[str, bytes]:
    """Return a small folder with training curves like Pollux's."""
    found = {}
    for batch in (32, 64, 128):
        steps = [(k * (6400 // batch + 20), 0.1 * k) for k in range(1, 8)]
        rows = [(50 * k, at, metric, 1.0 / k, 2.0 * k) for k, (at, metric) in enumerate(steps, 1)]
        names = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
        found[f"pollux/traces/toy/validation-{batch}.csv"] = _table(names, *rows)
    return found


def _gpu_steps() -> dict[str, bytes]:
    placements = _table(("placement", "local_bsz", "step_time", "sync_time"), (1, 8, 0.7, 0.01), (11, 8, 0.9, 0.2))
    names = ["# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length"]
    names += ["tensor parallelism", "data parallelism", "pipeline parallelism", "iteration time (ms)"]
    rates = {f"('ResNet-50 (batch size {batch})', 1)": {"null": 3.0} for batch in (16, 32, 64, 128)}
    return {
        "ddl-benchmarks/inputs.csv": throughputs()["ddl-benchmarks/inputs.csv"],
        "pollux/traces/imagenet/placements.csv": placements,
        "pollux/traces/bert/placements.csv": placements,
        "vtrain/single_sample.csv": _table(names, (2, 16, 8, 1024, 16, 2, 1024, 1, 1, 1, 372.2)),
        "gavel/simulation_throughputs.json": json.dumps({"p100": rates, "v100": rates}).encode(),
    }


def _published() -> Iterator[Subject]:
    tables: dict[str, Mapping[str, bytes]] = {PUBLISHED: throughputs(), NCCL: nccl_times(), POLLUX: curves()}
    for section, files in tables.items():
        yield Subject(
            f"validate, {section}",
            files,
            lambda folder, section=section: all_as_json(recompute(folder, [section])),  # type: ignore[misc]
        )
    yield Subject("measured GPUs", _gpu_steps(), _gpus)
    table = {str(vtrain.SINGLE): _gpu_steps()["vtrain/single_sample.csv"]}
    yield Subject("vTrain's layouts", table, lambda folder: vtrain.read(folder / vtrain.SINGLE, NONE))


def _gpus(folder: Path) -> object:
    return [case.seconds for source in (measured.published, measured.held_out) for case in source(folder)]


# ---------------------------------------------------------------------------------------------- folders


def _kept(make: Callable[[Path], object]) -> dict[str, bytes]:
    """Return the files that a writer of a folder leaves."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "folder"
        make(folder)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _folders() -> Iterator[Subject]:
    run = _kept(
        lambda folder: samples.write_run(folder, [{"seconds": k + 0.5, "loss": 2.0 / (k + 1)} for k in range(4)])
    )
    run["trace.json"] = _timeline()
    run["logs/rank-0.log"] = b"hello\n"
    yield Subject("run's folder", run, lambda folder: _page([folder]))
    comparison = _kept(lambda folder: samples.write_comparison(folder, ("bsp", "local(period=4)"), (0, 1), logs=2))
    yield Subject("comparison's folder", comparison, lambda folder: _page([folder]))
    script = json.dumps(__file__).encode()  # one that exists
    again = re.sub(rb'"[^"]*train.py"', lambda _: script, comparison["compare.json"])
    yield Subject("comparison, again", {"compare.json": again}, read_settings)
    yield Subject("comparison's session", {"sessions/seed-0.json": comparison["sessions/seed-0.json"]}, _session)
    trials = "".join(
        json.dumps({"trial": {"strategy": "bsp", "learning_rate": 0.1, "seed": s}, "points": [[1, 2.0], [2, 1.5]]})
        + "\n"
        for s in (0, 1)
    )
    yield Subject("trials", {"trials.jsonl": trials.encode()}, _trials)


def _session(folder: Path) -> object:
    kept = Folder.__new__(Folder)
    kept.path = folder
    return kept.load_session("seed-0", [])


def _trials(folder: Path) -> object:
    return CachedTrials(folder / "trials.jsonl", lambda trial: Curve(()))(Trial("bsp", 0.1, 0))


# ---------------------------------------------------------------------------------------------- messages


def _messages() -> Iterator[Subject]:
    message = ActorMessage("push", {"version": 0, "note": "x"}, (torch.ones(4), torch.ones(2, 2)))
    envelope = encode("s", Envelope(0, 0, 1, True, 1, 0, message))
    answer = encode("s", Answer(0, 0, 1, False, 1, 1, 1, message))
    hello = control.encode(control.Hello(control.VERSION, 0, 0, b"t" * 16, ["s"]))

    def frames(folder: Path) -> list[memoryview]:
        return [memoryview(bytearray(path.read_bytes())) for path in sorted(folder.iterdir())]

    yield Subject("envelope", _numbered(map(bytes, envelope)), lambda folder: decode_envelope(frames(folder), Limits()))
    yield Subject("answer", _numbered(map(bytes, answer)), lambda folder: decode_answer(frames(folder), Limits()))
    yield Subject("control message", _numbered([hello]), lambda folder: control.decode(bytes(frames(folder)[0])))


def _numbered(frames: Iterator[bytes] | Sequence[bytes]) -> dict[str, bytes]:
    return {str(number): frame for number, frame in enumerate(frames)}
