"""From what people have to advice, and clear sentences where it cannot be given."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import laconic
from laconic.cli.app import app
from laconic.errors import LaconicError
from laconic.planner.networks import LINE_SHARE, links_of
from laconic.planner.plan import _worth_verifying, plan
from laconic.planner.sources import subject_of
from laconic.planner.values import Advice, PlanError
from laconic.profile.gpus import gpu
from laconic.report.advice import show
from tests.planner.test_price import PROFILE

NCCL = """# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    20.00    0.05    0.09      0    20.00    0.05    0.09      0
     1048576        262144     float     sum      -1    60.00   17.48   30.58      0    60.00   17.48   30.58      0
   134217728      33554432     float     sum      -1  1000.00  134.22  234.88      0  1000.00  134.22  234.88      0
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    path.write_text(PROFILE.to_json())
    return str(path)


def test_a_model_of_the_zoo_needs_no_gpu_to_be_planned() -> None:
    found = laconic.plan("resnet50", workers=32, network="10gbit", gpu="v100", consider=["bsp", "bsp / topk(0.01)+ef"])
    assert found.parameters == 25_557_032
    assert found.priced == 2
    assert any("V100" in note for note in found.notes)


@pytest.mark.parametrize("workers", [4, 8])
def test_a_large_model_gets_no_loss_of_a_small_one(workers: int) -> None:
    """Its losses were measured with as many workers, on a net of 38 thousand parameters."""
    asked = ["local(4)", "bsp / power_sgd(rank=2)+ef", "grad_accumulation(4)", "bsp / scaled_sign+ef"]
    found = plan("gpt2-xl", workers=workers, gpu="h100", consider=asked)
    assert len(found.options) > len(asked) - 1
    output = StringIO()
    show(found, Console(file=output, width=200))
    rows = [line for line in output.getvalue().splitlines() if any(word in line for word in ("local", "power", "acc"))]
    assert len(rows) >= 3 and all("unknown here" in row and "%" not in row for row in rows)


def test_a_profile_is_planned_on_any_network(profile: str) -> None:
    slow, fast = (plan(profile, workers=4, network=rate, consider=["bsp"]) for rate in ("10mbit", "100gbit"))
    assert slow.best.step_seconds > fast.best.step_seconds
    assert "not timed" in " ".join(slow.notes)


def test_what_may_change_the_loss_and_pays_is_verified_the_fastest_first(profile: str) -> None:
    asked = ["bsp", "bsp / cast_bf16", "local(2)", "local(16)", "local(4)", "bsp / topk(0.5)+ef"]
    slow = plan(profile, workers=4, network="10mbit", consider=asked)
    assert _worth_verifying(slow) == (["local_sgd(16) / none / allreduce", "local_sgd(4) / none / allreduce"], [])
    fast = plan(profile, workers=4, network="1000gbit", consider=asked)
    assert _worth_verifying(fast) == ([option.strategy for option in fast.options], []), "where nothing pays"


def test_a_network_as_a_value(profile: str) -> None:
    sites = laconic.Network(4, (laconic.Level(1, 1e10), laconic.Level(2, 1e8, 0.025)))
    found = plan(profile, workers=4, network=sites, consider=["bsp"])
    assert found.network == "given (10Gbit, 100Mbit for 2 workers)"
    assert found.best.step_seconds > plan(profile, workers=4, network="10gbit", consider=["bsp"]).best.step_seconds
    with pytest.raises(PlanError, match="for 4 workers, not 8"):
        plan(profile, workers=8, network=sites)


def test_networks_as_people_name_them(tmp_path: Path) -> None:
    assert links_of("1gbit", 4).network.levels[0].bits_per_second == pytest.approx(LINE_SHARE * 1e9)
    assert links_of("1gbit", 4, latency="25ms").network.levels[0].latency_seconds == 0.025
    inside = links_of("10gbit", 8, gpu("v100"))
    assert len(inside.network.levels) == 1 and "the network is not used" in " ".join(inside.notes)
    assert [level.workers for level in links_of("10gbit", 32, gpu("v100")).network.levels] == [1, 8]
    sites = tmp_path / "sites.toml"
    sites.write_text(
        '[network]\nlevels = [{bandwidth = "10Gbit"}, {workers = 4, bandwidth = "200Mbit", latency = "25ms"}]\n'
        "[compute]\nslowness = [1, 1, 1, 3]\n"
    )
    found = links_of(str(sites), 8)
    assert found.slowness == (1, 1, 1, 3) and len(found.network.levels) == 2
    log = tmp_path / "all_reduce_perf.txt"
    log.write_text(NCCL)
    same, other = links_of(str(log), 8), links_of(str(log), 16)
    assert same.network.measured is not None and other.network.measured is None
    assert "16" in other.notes[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast", "no network"),
        ("0gbit", "moves nothing"),
        ("100", 'write "100Mbit"'),
        ("there_is_none.toml", "no network file"),
        ("there_is_none.txt", "no file"),
    ],
)
def test_a_network_that_is_none(text: str, says: str) -> None:
    with pytest.raises(LaconicError, match=says):
        links_of(text, 4)


@pytest.mark.parametrize(
    ("subject", "more", "says"),
    [
        ("there_is_none.py", {}, "no script"),
        ("there_is_none.json", {}, "no file"),
        ("resnet51", {"gpu": "v100"}, "ResNet-50"),
        ("resnet50", {}, "--gpu"),
        ("resnet50", {"gpu": "v1000"}, "V100"),
        ("resnet50", {"gpu": "v100", "workers": 0}, "at least 1"),
        ("resnet50", {"gpu": "v100", "network": "probe"}, "nothing to probe"),
    ],
)
def test_what_cannot_be_planned(subject: str, more: dict[str, object], says: str) -> None:
    with pytest.raises(LaconicError, match=says):
        plan(subject, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["workers", "servers", "top"])
def test_numbers_are_refused_before_anything_is_measured(tmp_path: Path, option: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('never run')")
    with pytest.raises(PlanError, match=f"--{option} -1 makes no sense"):
        plan(str(script), **{option: -1})  # type: ignore[arg-type]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('never run')")
    monkeypatch.setenv("XDG_CACHE_HOME", str(script))
    with pytest.raises(LaconicError, match=r"the cache folder .* cannot be written .*XDG_CACHE_HOME"):
        plan(str(script))


def test_options_that_are_not_its_own_are_the_scripts(profile: str) -> None:
    """As for `laconic run`: no `--` is needed."""
    result = CliRunner().invoke(app, ["plan", profile, "--workers", "4", "--epochs", "4", "--top", "3"])
    assert isinstance(result.exception, PlanError)
    assert "only a script has arguments" in str(result.exception) and "leave out --epochs 4" in str(result.exception)


def test_files_that_are_something_else(tmp_path: Path, profile: str) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(PlanError, match="no script"):
        subject_of(str(text), (), 4, "1gbit")
    with pytest.raises(PlanError, match="only a script has arguments"):
        subject_of(profile, ("--steps", "3"), 4, "1gbit")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(LaconicError):
        subject_of(str(broken), (), 4, "1gbit")


@pytest.mark.long
def test_the_command(profile: str) -> None:
    run = CliRunner().invoke
    result = run(app, ["plan", profile, "--workers", "4", "--network", "10mbit", "--top", "4"])
    assert result.exit_code == 0, result.output
    assert "strategies priced" in result.output and "laconic run --workers 4" in result.output
    programs = run(app, ["plan", profile, "--workers", "4", "--json", "--strategy", "bsp", "--loss-budget", "1%"])
    assert Advice.from_json(programs.output).loss_budget == pytest.approx(0.01)
    assert json.loads(programs.output)["options"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--objective", "beauty"], "time, bytes, cost, energy"),
        (["--loss-budget", "some"], "no share"),
        (["--objective", "cost"], "--price"),
        (["--verify", "1min"], "trains a script"),
        (["--slowness", "a,b"], "slowness"),
    ],
)
def test_the_command_refuses_in_a_sentence(profile: str, arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["plan", profile, *arguments])
    assert result.exit_code != 0
    assert isinstance(result.exception, LaconicError) and says in str(result.exception)


def test_a_network_that_cannot_be_read_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    script, mark, network = tmp_path / "train.py", tmp_path / "has_run", tmp_path / "net.toml"
    script.write_text(f"open({str(mark)!r}, 'w').close()\n")
    network.write_text('[network]\nworkers = 4\nlevels = [{workers = 1, bandwidth = "1Gbit"}]\n')
    with pytest.raises(LaconicError, match="'workers'"):
        plan(str(script), workers=4, network=str(network))
    assert not mark.exists()
