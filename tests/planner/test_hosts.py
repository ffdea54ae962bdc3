"""How GPUs are grouped in hosts: a rate that is named is one between GPUs, and a file describes hosts itself."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.network.network_tree import Network
from laconic.planner.layouts import plan_layouts
from laconic.planner.networks import PROBE, links_named, links_of
from laconic.planner.plan import plan
from laconic.planner.values import Advice, PlanError
from laconic.profile.gpus import gpu
from laconic.report.advice import show

V100 = gpu("v100")
APART = "GPUs stand apart, since a network was named: --gpus-per-host 4 puts all 4 V100 into one machine"


def planned(**asked: Any) -> Advice:
    return plan("resnet50", gpu="v100", consider=["bsp"], **{"workers": 4} | asked)


def printed(advice: Advice) -> str:
    output = StringIO()
    show(advice, Console(file=output, width=200))
    return output.getvalue()


def test_a_rate_that_is_named_is_one_between_gpus_and_a_line_says_so() -> None:
    slow, fast = planned(network="50mbit"), planned(network="10gbit")
    assert slow.best.step_seconds > 10 * fast.best.step_seconds
    assert "the network is not your problem" not in slow.verdict
    (line,) = (line for line in printed(slow).splitlines() if "--gpus-per-host" in line)
    assert line.strip().startswith(APART)
    assert any(note.startswith(APART) for note in Advice.from_json(slow.to_json()).notes)


def test_gpus_apart_have_the_rate_alone() -> None:
    apart, flat = links_named("50mbit", 4, V100, None, None).network, links_of("50mbit", 4).network
    assert apart.levels == flat.levels


def test_without_a_named_network_they_stand_as_usually_sold() -> None:
    found = planned()
    assert found.network == "1gbit" and "the network is not your problem" in found.verdict
    assert "--gpus-per-host" not in printed(found)


@pytest.mark.parametrize("workers", [1, 16])
def test_where_the_question_does_not_arise_nothing_is_said(workers: int) -> None:
    """One GPU needs no network, and sixteen do not fit into one machine."""
    links = links_named("50mbit", workers, V100, None, None)
    assert links == links_of("50mbit", workers, V100)
    assert not any("--gpus-per-host" in note for note in links.notes)


@pytest.mark.parametrize(("each", "levels"), [(4, [1]), (8, [1]), (2, [1, 2]), (1, [1])])
def test_the_option_says_how_many_share_a_machine(each: int, levels: list[int]) -> None:
    links = links_named("50mbit", 4, V100, None, each)
    assert [level.workers for level in links.network.levels] == levels
    inside = links.network.levels[0].bits_per_second > 1e9
    assert inside is (each > 1)
    assert not any("--gpus-per-host" in note for note in links.notes), "who says it need not be told"


def test_the_option_counts_without_a_named_network_too() -> None:
    assert planned(gpus_per_host=2).best.step_seconds > planned().best.step_seconds


def test_a_network_that_describes_hosts_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('[network]\nlevels = [{bandwidth = "100Gbit"}, {workers = 2, bandwidth = "50Mbit"}]\n')
    described = planned(network=str(file))
    assert [level.workers for level in links_named(str(file), 4, V100, None, None).network.levels] == [1, 2]
    assert "--gpus-per-host" not in printed(described)
    with pytest.raises(PlanError, match=r"--gpus-per-host 4 .* describe the hosts in a \.toml file"):
        planned(network=str(file), gpus_per_host=4)


@pytest.mark.parametrize("network", [PROBE, Network.flat(4, 1e9), "log.txt"])
def test_the_option_is_refused_with_every_other_network(network: str | Network) -> None:
    with pytest.raises(PlanError, match="--gpus-per-host 2"):
        planned(network=network, gpus_per_host=2)


@pytest.mark.parametrize(
    ("asked", "says"), [({"gpu": None}, "--gpu"), ({"gpus_per_host": 0}, "at least 1"), ({"gpus_per_host": -4}, "-4")]
)
def test_the_option_is_refused_in_a_sentence(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=f"--gpus-per-host .*{says}"):
        plan("resnet50", **{"workers": 4, "gpu": "v100", "network": "1gbit", "gpus_per_host": 2} | asked)


def test_a_script_is_refused_before_it_runs(tmp_path: Path) -> None:
    """Its times are measured here, and of what joins the GPUs here nothing is known."""
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('never run')")
    with pytest.raises(PlanError, match="--gpus-per-host 2"):
        plan(str(script), gpu="v100", network="1gbit", gpus_per_host=2)


def test_the_command_has_the_option() -> None:
    asked = ["plan", "resnet50", "--gpus", "4", "--network", "50mbit", "--gpu", "v100", "--strategy", "bsp"]
    apart, together = (CliRunner().invoke(app, [*asked, *more]) for more in ([], ["--gpus-per-host", "4"]))
    assert apart.exit_code == together.exit_code == 0
    assert APART in apart.output and "Nothing to do" not in apart.output
    assert APART not in together.output and "Nothing to do" in together.output


def test_layouts_have_machines_as_sold_or_as_asked() -> None:
    def across(gpus_per_host: int | None) -> float:
        asked = {"gpus": 8, "network": "10gbit", "batch": 64, "top": 1, "gpus_per_host": gpus_per_host}
        return plan_layouts("gpt2-xl", **asked).choices[0].seconds  # type: ignore[arg-type]

    assert across(None) == across(8) < across(2) <= across(1)
