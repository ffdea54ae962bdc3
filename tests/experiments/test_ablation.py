"""A strategy taken apart: which rows there are, and that parts do what they are known to do."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic import registry
from laconic.cli import app as cli
from laconic.experiments.ablation import variants
from laconic.strategy import Sentence, Strategy

SCRIPT = Path(__file__).parent / "regression.py"


def rows(text: str) -> dict[str, str]:
    return {v.change: "" if v.strategy is None else str(v.strategy) for v in variants(Strategy.parse(text))}


def test_each_link_of_a_chain_is_taken_out_once() -> None:
    assert rows("local(4) / topk(0.05)+qsgd+ef") == {
        "without local_sgd(4) (bsp instead)": "bsp / topk(0.05)+qsgd+error_feedback / allreduce",
        "without topk(0.05)": "local_sgd(4) / qsgd+error_feedback / allreduce",
        "without qsgd": "local_sgd(4) / topk(0.05)+error_feedback / allreduce",
        "without error_feedback": "local_sgd(4) / topk(0.05)+qsgd / allreduce",
        "local_sgd with period=8": "local_sgd / topk(0.05)+qsgd+error_feedback / allreduce",
        "topk with ratio=0.01": "local_sgd(4) / topk+qsgd+error_feedback / allreduce",
        "nothing but bsp": "bsp / none / allreduce",
    }


def test_a_memory_around_nothing_goes_with_what_it_wrapped() -> None:
    assert rows("bsp / bf16+ef")["without cast_bf16"] == "bsp / none / allreduce"


def test_switches_that_are_on_are_switched_off() -> None:
    assert rows("dgc")["dgc with masking=false"] == "bsp / dgc(masking=false) / allreduce"


def test_a_rule_that_goes_takes_its_architecture_along() -> None:
    found = rows("choco_sgd / topk(0.1) / gossip / ring")
    assert found["without choco_sgd (bsp instead)"] == "bsp / topk(0.1) / allreduce"
    assert found["without gossip (allreduce instead)"] == "", "choco_sgd cannot go without neighbours"


def test_larger_shapes_lose_their_members_and_parts_of_them() -> None:
    assert rows("bsp until step 5, then fp16")["without phase 1"] == "bsp / cast_fp16 / allreduce"
    levels = rows("[bsp]@node > [diloco(8) / int8]@site")
    assert levels["bsp in level site"] == "[bsp / none / allreduce]@node > [bsp / none / allreduce]@site"
    assert "without cast_int8 (none instead) in level site" in levels
    assert rows("{matrix: power_sgd+ef, else: fp16}")["without rule matrix"] == "bsp / cast_fp16 / allreduce"


@pytest.mark.parametrize("text", [entry.name for entry in registry.entries() if entry.kind == "sentence"])
def test_what_is_left_of_any_named_method_can_be_read_and_is_another_one(text: str) -> None:
    strategy = Strategy.parse(text)
    found = [v.strategy for v in variants(strategy) if v.strategy is not None]
    assert all(Strategy.parse(str(left)) == left != strategy for left in found)
    assert len(set(map(str, found))) == len(found)
    assert strategy == Sentence() or Sentence() in found
    assert all(v.refusal for v in variants(strategy) if v.strategy is None)


@pytest.mark.long
def test_the_table_says_what_memory_and_selection_contribute(tmp_path: Path) -> None:
    command = ["ablate", "--workers", "2", "--folder", str(tmp_path / "apart")]
    result = CliRunner().invoke(cli.app, [*command, "topk(0.05)+ef", str(SCRIPT)])
    assert result.exit_code == 0, result.output
    assert "NOT MADE BY THE PROTOCOL" in result.output and "encoding costs nothing there" in result.output
    table = {row["part"]: row for row in csv.DictReader((tmp_path / "apart" / "ablation.csv").open())}
    assert list(table) == ["the whole", "without topk(0.05)", "without error_feedback", "topk with ratio=0.01"]
    ratio = {part: float(row["final_loss_ratio"]) for part, row in table.items()}
    assert ratio["without error_feedback"] > 1.2, "what is not sent is lost"
    assert ratio["without topk(0.05)"] < 1, "nothing is late"
    assert float(table["without topk(0.05)"]["sent_bytes_per_step_ratio"]) > 5
    assert float(table["without error_feedback"]["sent_bytes_per_step_ratio"]) == 1


def test_rows_can_be_listed_without_running_them() -> None:
    result = CliRunner().invoke(cli.app, ["ablate", "--list", "bsp / bf16+ef", "no_such_script.py"])
    assert result.exit_code == 0
    assert "without error_feedback  bsp / cast_bf16 / allreduce" in result.output


def test_a_sentence_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(Exception, match="no technique is called"):
        CliRunner().invoke(cli.app, ["ablate", "bsp / nonsense", "s.py"], catch_exceptions=False)
