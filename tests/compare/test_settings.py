"""What is asked for is checked before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laconic.engine.compare.choose import with_rivals
from laconic.engine.compare.folder import Folder, read_settings
from laconic.engine.compare.request import settings_of
from laconic.engine.compare.settings import CompareError, Settings, Tuning, alternatives, groups
from laconic.errors import LaconicError

PLAIN: dict[str, Any] = {
    "target": None, "blocks": None, "seeds": None, "quick": False, "protocol": False, "lr": None, "lr_argument": "--lr",
    "metric": "loss", "choosing_seeds": "0,1", "rivals": True,
}  # fmt: skip


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    return "train.py"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"strategies": ()}, "give --strategy once for every row"),
        ({"command": ("missing.py",)}, "'missing.py' does not exist"),
        ({"steps": 1}, "--steps 1"),
        ({"blocks": 0}, "--blocks 0"),
        ({"block_steps": 0}, "--block-steps 0"),
        ({"rows_at_once": 1}, "--rows-at-once 1"),
        ({"engine": "virtual", "rate": "1Gbit"}, "leave out --rate"),
        ({"net": "lab", "rate": "1Gbit"}, "has its own rate"),
        ({"delay": "25ms"}, "add --rate"),
        ({"network": "1Gbit"}, "add --engine virtual"),
        ({"strategies": ("bsp", "no such word")}, "no such word"),
        ({"strategies": ("torch:ddb",)}, "torch:ddp"),
        ({"strategies": ("torch:ddp",), "engine": "virtual"}, "needs real processes"),
        ({"strategies": ("local(period={1|2|3|4})",)}, "at most 3 values"),
        ({"strategies": ("local(period={1|2}) / topk({1|2})",)}, "leaves 2 knobs open"),
        ({"quick": True, "tuning": Tuning(0.1)}, "give one of them"),
        ({"seeds": (1,), "tuning": Tuning(0.1)}, "leave out --seeds"),
        ({"blocks": 3, "tuning": Tuning(0.1)}, "at least 10 blocks"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused_by_name(script: str, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(LaconicError) as refused:
        Settings(**{"command": (script,), "strategies": ("bsp",), **wrong})
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"protocol": True}, "give it with --lr"),
        ({"protocol": True, "lr": -1.0}, "no learning rate"),
        ({"protocol": True, "lr": 0.1, "seeds": "1,2"}, "seed 1 cannot both choose and report"),
        ({"seeds": "1;2"}, "write, for example, --seeds 0,1,2"),
        ({"target": "loss"}, "is not NAME=VALUE"),
    ],
)
def test_texts_that_are_no_values_are_refused_by_option(script: str, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(CompareError) as refused:
        settings_of(script, (), ("bsp",), **{**PLAIN, **wrong})
    assert says in str(refused.value)


def test_no_script_points_to_an_earlier_comparison() -> None:
    with pytest.raises(CompareError, match="--again"):
        settings_of(None, (), ("bsp",), **PLAIN)


def test_braces_open_one_knob_and_a_map_is_no_knob() -> None:
    assert alternatives("local(period={4|8|16}) / none") == [f"local(period={k}) / none" for k in (4, 8, 16)]
    assert alternatives("bsp / {matrix: cast_bf16, else: none}") == ["bsp / {matrix: cast_bf16, else: none}"]


def test_every_group_of_rows_holds_the_baseline() -> None:
    assert groups(5, None) == groups(5, 5) == [[0, 1, 2, 3, 4]]
    assert groups(6, 3) == [[0, 1, 2], [0, 3, 4], [0, 5]]
    assert groups(1, 2) == [[0]]


def test_blocks_fill_the_steps_beside_the_warm_up(script: str) -> None:
    def block_steps(**given: Any) -> int:
        return Settings((script,), ("bsp",), **given).steps_per_block

    assert block_steps(steps=44) == 4
    assert block_steps(steps=3) == 1
    assert block_steps(steps=44, block_steps=11) == 11
    assert block_steps() == 10


def test_quick_means_few_blocks(script: str) -> None:
    assert settings_of(script, (), ("bsp",), **PLAIN).blocks == 10
    assert settings_of(script, (), ("bsp",), **{**PLAIN, "quick": True}).blocks == 5


def test_settings_survive_the_folder_and_a_folder_is_not_used_twice(script: str, tmp_path: Path) -> None:
    settings = Settings((script, "--x", "1"), ("bsp",), target=("loss", 0.3), seeds=(3, 4), tuning=None)
    folder = Folder(str(tmp_path / "a"), settings)
    folder.begin(["laconic", "compare"])
    assert read_settings(tmp_path / "a") == settings
    assert json.loads((tmp_path / "a" / "compare.json").read_text())["versions"]["laconic"]
    with pytest.raises(CompareError, match="holds a comparison already"):
        Folder(str(tmp_path / "a"), settings)
    with pytest.raises(CompareError, match="holds no comparison"):
        read_settings(tmp_path / "b")


def test_a_protocol_goes_on_in_its_folder_but_no_other_does(script: str, tmp_path: Path) -> None:
    settings = Settings((script,), ("bsp",), tuning=Tuning(0.1))
    Folder(str(tmp_path / "a"), settings).begin(["laconic"])
    assert read_settings(tmp_path / "a") == settings
    Folder(str(tmp_path / "a"), settings)
    with pytest.raises(CompareError, match="another comparison"):
        Folder(str(tmp_path / "a"), Settings((script,), ("bsp",), tuning=Tuning(0.2)))


def test_rivals_join_unless_they_are_there_or_cannot_be(script: str) -> None:
    tuning = Tuning(0.1)
    texts, _ = with_rivals(Settings((script,), ("bsp", "torch:ddp(bucket_cap_mb=5)"), tuning=tuning))
    assert [text for text in texts if text.startswith("torch:ddp(")] == ["torch:ddp(bucket_cap_mb=5)"]
    assert "torch:ddp16" in texts
    texts, missing = with_rivals(Settings((script,), ("bsp",), engine="virtual", tuning=tuning))
    assert texts == ["bsp"]
    assert "needs real processes" in missing[0]
