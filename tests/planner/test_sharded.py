"""Plain data parallelism and ways to shard, side by side with their memory: what does not fit is told."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.network.network_tree import Level, Network
from laconic.planner.deployment import Deployment
from laconic.planner.plan import plan
from laconic.planner.price import Pricer
from laconic.planner.sharded import ShardedPricer, modules_of
from laconic.planner.values import Advice, PlanError, ShardedOption
from laconic.profile.gpus import gpu, profile_of, usable_bytes
from laconic.report.advice import show
from tests.planner.test_price import PROFILE

HOSTED = {"HSDP", "ZeRO++ hpZ"}


def advice(
    model: str = "llama2-7b", chip: str = "h100", workers: int = 64, network: str = "100gbit", **more: str
) -> Advice:
    return plan(model, workers=workers, network=network, gpu=chip, batch=1, consider=["bsp"], **more)  # type: ignore[arg-type]


def by_title(found: Advice) -> dict[str, ShardedOption]:
    return {row.title: row for row in found.sharded}


def deployment(
    model: str = "gpt2-xl", chip: str = "a100", hosts: int = 4, inside: int = 8, rate: float = 1e11
) -> Deployment:
    network = Network(hosts * inside, (Level(1, 2e12), Level(inside, rate, 1e-5)), lanes=1, trees=True)
    return Deployment(profile_of(model, chip, 1), network, hosts * inside)


@pytest.fixture(scope="module")
def large() -> Advice:
    return advice()


def test_what_does_not_fit_is_shown_and_not_recommended(large: Advice) -> None:
    plain, *ways = large.sharded
    assert plain.title == "data parallel" and plain.fits is False
    assert plain.memory.total > usable_bytes(gpu("h100"))
    assert "does not fit" in large.verdict
    chosen = next(way for way in ways if way.line == large.line)
    assert chosen.fits and chosen.exact
    assert chosen.step_seconds == min(way.step_seconds for way in ways if way.fits and way.exact)
    assert not large.pays and "no strategy of the first table fits" in large.warnings[0]


def test_all_rows_are_printed_those_that_do_not_fit_too(large: Advice) -> None:
    output = StringIO()
    show(large, Console(file=output, width=200))
    lines = output.getvalue().splitlines()
    for row in large.sharded:
        line = next(line for line in lines if line.startswith(row.title))
        assert ("does not fit" in line) is (row.fits is False)


def test_ways_by_their_memory(large: Advice) -> None:
    """In bytes a parameter, by ZeRO's formulas and what a method keeps beside: hosts of 8, 64 GPUs, mixed precision."""
    rows, n = by_title(large), large.parameters
    states = {"data parallel": 16, "ZeRO stage 1": 4 + 12 / 64, "ZeRO stage 2": 2 + 14 / 64, "ZeRO stage 3": 16 / 64}
    for title, each in (states | {"HSDP": 16 / 8, "SDP4Bit": 16 / 64, "ZeRO++": 16 / 64}).items():
        assert rows[title].memory.state == pytest.approx(each * n, rel=0.02), title
    assert rows["SDP4Bit"].memory.copies == pytest.approx(2 * n, rel=0.02)
    assert rows["ZeRO++ hpZ"].memory.copies == rows["ZeRO++"].memory.copies == pytest.approx(2 * n / 8, rel=0.02)
    assert rows["LoCo"].memory.errors == pytest.approx(n * (1 + 1 / 8), rel=0.02), "both hops remember"
    assert rows["ZeRO stage 3"].memory.copies == rows["ZeRO stage 3"].memory.errors == 0


def test_where_nothing_fits_nothing_is_recommended() -> None:
    found = advice("llama2-70b", "v100", 16)
    assert all(row.fits is False for row in found.sharded)
    assert found.line == "" and "Nothing here fits" in found.verdict
    assert Advice.from_json(found.to_json()) == found


def test_all_parts_of_the_memory_count() -> None:
    """The state of stage 3 would fit; activations, which are known, leave no room for it."""
    found = advice(gpu_memory="24GB")
    row = by_title(found)["ZeRO stage 3"]
    assert found.gpu_bytes is not None and row.memory.state < found.gpu_bytes < row.memory.total
    assert row.fits is False and "of it activations" in found.verdict


def test_where_data_parallelism_fits_the_advice_is_as_before(large: Advice) -> None:
    small = advice("resnet50", "v100", 16)
    assert small.sharded[0].fits and small.line.startswith("laconic run")
    assert "does not fit" not in small.verdict
    assert {row.title for row in small.sharded} == {row.title for row in large.sharded}


def test_one_host_has_no_slices_and_no_replicas() -> None:
    titles = {row.title for row in advice("gpt2", "v100", 8).sharded}
    assert not titles & HOSTED and "ZeRO stage 3" in titles


def test_one_worker_has_nobody_to_shard_with() -> None:
    found = advice("llama2-7b", "v100", 1)
    assert [row.title for row in found.sharded] == ["data parallel"] and found.line == ""


def test_memory_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(PROFILE.to_json())
    assert plan(str(path), workers=4, consider=["bsp"]).sharded == ()
    told = plan(str(path), workers=4, consider=["bsp"], gpu_memory="2MB")
    assert told.gpu_bytes == pytest.approx(0.92 * 2e6)
    assert told.sharded[0].memory.activations == 0 and "not known" in " ".join(told.notes)
    with pytest.raises(PlanError, match="is no size"):
        plan(str(path), workers=4, gpu_memory="much")
    with pytest.raises(PlanError, match="write its unit"):
        plan(str(path), workers=4, gpu_memory="80")


def test_the_command_line_tells_what_fits() -> None:
    asked = [
        "plan",
        "gpt2-xl",
        "--gpu",
        "a100",
        "--gpus",
        "16",
        "--network",
        "100gbit",
        "--batch",
        "1",
        "--strategy",
        "bsp",
    ]
    said = CliRunner().invoke(app, [*asked, "--gpu-memory", "24GB"]).output
    assert "does not fit" in said and "fully_shard(part" in said
    assert "does not fit" not in CliRunner().invoke(app, asked).output


def test_blocks_are_sharded_each_by_itself() -> None:
    subject = deployment()
    around, *blocks = modules_of(subject)
    assert len(blocks) == 48 and len({block.padded(1) for block in blocks}) == 1
    assert {spec.name.split(".")[1] for spec in around.tensors} == {"wte", "wpe", "ln_f"}
    whole = [around, *blocks]
    assert sum(module.padded(1) for module in whole) == sum(spec.numel for spec in subject.tensors)
    assert sum(m.forward + m.forward_after for m in whole) == pytest.approx(subject.forward.sum())
    assert sum(m.backward + m.backward_before for m in whole) == pytest.approx(subject.backward.sum())
    assert around.forward_after > around.forward, "the scores are after the blocks"


@pytest.mark.parametrize("rate", [1e12, 1e11, 1e10])
def test_a_step_is_computing_coding_and_what_is_exposed(rate: float) -> None:
    pricer = Pricer(deployment(rate=rate))
    for row in ShardedPricer(pricer).rows(pricer.ddp("none", 2**20), None):
        parts = row.computing_seconds + row.coding_seconds + row.exposed_seconds
        assert parts == pytest.approx(row.step_seconds), row.title
        assert row.fits is None


def test_the_slower_the_network_the_more_fewer_bytes_gain() -> None:
    gains = []
    for rate in (1e12, 1e11, 1e10):
        pricer = Pricer(deployment(rate=rate))
        rows = {row.title: row for row in ShardedPricer(pricer).rows(pricer.ddp("none", 2**20), None)}
        gains.append(rows["ZeRO stage 3"].step_seconds / rows["ZeRO++"].step_seconds)
    assert gains == sorted(gains) and gains[0] < 1.2
    assert 3.5 < gains[-1] <= 4.1, "the wire alone: 3 M over 0.75 M"
