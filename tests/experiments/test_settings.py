"""What is asked for is checked before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laconic.errors import LaconicError
from laconic.experiments.choose_rows import with_rivals
from laconic.experiments.folder import Folder, read_settings
from laconic.experiments.outcome import Block, RunOutcome
from laconic.experiments.request import settings_of
from laconic.experiments.settings import CompareError, Settings, Tuning, alternatives, groups

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
        ({"target": ("accuracy", 0.9), "tuning": Tuning(0.1)}, "tunes by loss, but --target is of accuracy"),
        ({"target": ("loss", float("nan"))}, "can never be reached"),
        ({"seeds": (1, 2, 1)}, "--seeds names seed 1 twice"),
        ({"engine": "virtual", "network": "missing.toml"}, "no network file missing.toml"),
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
        ({"protocol": True, "lr": 0.1, "seeds": "3,3"}, "--seeds names seed 3 twice"),
        ({"protocol": True, "lr": 0.1, "choosing_seeds": "0,0"}, "--choosing-seeds names seed 0 twice"),
        ({"target": "loss"}, "is not NAME=VALUE"),
        ({"target": "=1.6"}, "is not NAME=VALUE"),
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
        return Settings((script,), ("bsp",), **given).steps_per_block("bsp")

    assert block_steps(steps=44) == 4
    assert block_steps(steps=3) == 1
    assert block_steps(steps=44, block_steps=11) == 11
    assert block_steps() == 10


def test_a_block_of_a_row_is_whole_periods(script: str) -> None:
    settings = Settings((script,), ("bsp",), steps=72)
    assert settings.steps_per_block("bsp") == 6
    for text, steps in [
        ("local(2)", 6),
        ("local(4)", 8),
        ("local(32)", 32),
        ("diloco", 500),
        ("accumulate(4)", 8),
        ("downpour(n_fetch=2, n_push=5) / none / ps", 10),
        ("[local(2)]@node > [local(3)]@site", 6),
        ("bsp until step 5, then local(16)", 16),
        ("torch:postlocal(period=5)", 10),
        ("torch:accumulate(steps=4)", 8),
        ("auto", 6),
    ]:
        assert settings.steps_per_block(text) == steps, text
    assert Settings((script,), ("bsp",), block_steps=10).steps_per_block("local(4)") == 12, "whatever was asked for"


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
    with pytest.raises(CompareError, match="there is no comparison"):
        read_settings(tmp_path / "b")


def test_a_protocol_goes_on_in_its_folder_but_no_other_does(script: str, tmp_path: Path) -> None:
    settings = Settings((script,), ("bsp",), tuning=Tuning(0.1))
    Folder(str(tmp_path / "a"), settings).begin(["laconic"])
    assert read_settings(tmp_path / "a") == settings
    Folder(str(tmp_path / "a"), settings)
    with pytest.raises(CompareError, match="another comparison"):
        Folder(str(tmp_path / "a"), Settings((script,), ("bsp",), tuning=Tuning(0.2)))


@pytest.mark.parametrize(("name", "says"), [("run.json", "it holds a run"), ("notes.txt", "it holds notes.txt")])
def test_a_folder_in_use_is_left_alone(script: str, tmp_path: Path, name: str, says: str) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / name).write_text("mine")
    for tuning in (None, Tuning(0.1)):
        with pytest.raises(CompareError, match=says):
            Folder(str(used), Settings((script,), ("bsp",), tuning=tuning))
    assert [path.name for path in used.iterdir()] == [name]
    (used / name).rename(used / "compare.json")
    with pytest.raises(CompareError, match="is no comparison"):
        Folder(str(used), Settings((script,), ("bsp",), tuning=Tuning(0.1)))


def test_a_protocol_does_not_go_on_with_another_script_or_other_versions(script: str, tmp_path: Path) -> None:
    settings = Settings((script,), ("bsp",), tuning=Tuning(0.1))
    folder = str(tmp_path / "a")
    Folder(folder, settings).begin(["laconic"])
    Path(script).write_text("print('another')")
    with pytest.raises(CompareError, match=r"train\.py has other content now.*another --folder"):
        Folder(folder, settings)
    Path(script).write_text("")
    Folder(folder, settings)
    record = json.loads((tmp_path / "a" / "compare.json").read_text())
    record["versions"]["torch"] = "0.4.1"
    (tmp_path / "a" / "compare.json").write_text(json.dumps(record))
    with pytest.raises(CompareError, match=r"torch was 0\.4\.1 and is "):
        Folder(folder, settings)


def test_a_session_in_which_a_row_failed_is_run_again(script: str, tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "a"), Settings((script,), ("bsp",), tuning=Tuning(0.1)))
    block = Block(0, 2, 1.0, None, None, whole=True)
    folder.save_session(
        "seed-2", ["key"], [["bsp", "local"]], [[RunOutcome((block,)), RunOutcome((block,), error="lost")]]
    )
    assert folder.load_session("seed-2", ["key"]) is None
    whole = [[RunOutcome((block,)), RunOutcome((block,))]]
    folder.save_session("seed-2", ["key"], [["bsp", "local"]], whole)
    folder.save_session("seed-3", ["key"], [["bsp", "local"]], whole)
    assert folder.load_session("seed-2", ["key"]) == whole
    lines = [json.loads(line) for line in (folder.path / "blocks.jsonl").read_text().splitlines()]
    assert [(line["session"], line["row"]) for line in lines] == [
        (session, row) for session in ("seed-2", "seed-3") for row in ("bsp", "local")
    ]


def test_rivals_join_unless_they_are_there_or_cannot_be(script: str) -> None:
    tuning = Tuning(0.1)
    texts, departures = with_rivals(Settings((script,), ("bsp", "torch:ddp(bucket_cap_mb=5)"), tuning=tuning))
    assert "`torch:ddp(bucket_cap_mb=5)` as given, in place of `torch:ddp(bucket_cap_mb={1|5|25})`" in departures
    assert [text for text in texts if text.startswith("torch:ddp(")] == ["torch:ddp(bucket_cap_mb=5)"]
    assert "torch:ddp16" in texts
    own = ("bsp", "torch:ddp(bucket_cap_mb = {1|5|25})", "torch:ddp16")
    assert not any("in place of" in text for text in with_rivals(Settings((script,), own, tuning=tuning))[1])
    texts, missing = with_rivals(Settings((script,), ("bsp",), engine="virtual", tuning=tuning))
    assert texts == ["bsp"]
    assert "needs real processes" in missing[0]
