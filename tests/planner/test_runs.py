"""Rows of measured trainings are read as they were written, and refused by line where they are none."""

import json
import re

import pytest

from laconic.errors import LaconicError
from laconic.planner.runs import FOLDER, read

ROW = {
    **{"task": "bytes", "rung": "depth", "kind": "transformer", "parameters": 10678272, "tensors": 77, "workers": 8},
    **{"optimizer": "adamw", "samples_per_step": 65536, "sentence": "diloco(30, outer_lr=0.7)", "lr": 0.001},
    **{"seed": 2, "steps": 3000, "purpose": "report", "full_steps": 3000, "skewed": False, "loss": 1.0312},
    **{"metrics": {"accuracy": 0.91}, "curve": [[300, 1.9], [3000, 1.0312]], "bytes": 123456789, "seconds": 41.2},
    **{"packed": 4, "device": "NVIDIA H200", "torch": "2.11", "commit": "abc1234", "command": "python bench/x.py"},
}


def write(folder, *rows, name="bytes-depth"):
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(text)
    return folder


def test_a_row_is_read_as_it_was_written(tmp_path):
    (run,) = read(write(tmp_path, ROW))
    assert {name: getattr(run, name) for name in ROW if name != "curve"} == {k: ROW[k] for k in ROW if k != "curve"}
    assert run.curve == ((300, 1.9), (3000, 1.0312))
    assert run.bytes_per_step == 123456789 / 3000 and run.share == 1.0 and run.final == 1.0312


def test_a_training_that_diverged_has_an_infinite_loss(tmp_path):
    (run,) = read(write(tmp_path, {**ROW, "loss": None, "diverged": True, "curve": [[300, None]]}))
    assert run.final == float("inf")


def test_a_repeated_run_counts_once_with_its_last_row(tmp_path):
    folder = write(tmp_path, ROW, {**ROW, "seed": 3}, "", {**ROW, "loss": 1.5, "commit": "later"})
    assert [(run.seed, run.loss) for run in read(folder)] == [(2, 1.5), (3, 1.0312)]


def test_a_row_that_is_appended_is_read_too(tmp_path):
    folder = write(tmp_path, ROW)
    assert len(read(folder)) == 1
    assert len(read(write(tmp_path, ROW, {**ROW, "seed": 3}))) == 2


def test_further_notes_of_a_command_are_left_out(tmp_path):
    assert read(write(tmp_path, {**ROW, "gpu_minutes": 3}))[0].sentence == ROW["sentence"]


def test_all_files_of_a_folder_are_read_and_no_folder_holds_none(tmp_path):
    assert len(read(write(tmp_path, ROW))) == 1
    assert len(read(write(tmp_path, {**ROW, "task": "cifar"}, name="cifar-breadth"))) == 2
    assert read(tmp_path / "nothing") == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({**ROW, "loss": "low"}, "loss"),
        ({**ROW, "purpose": "guess"}, "purpose"),
        ({**ROW, "steps": 0}, "steps"),
        ({k: v for k, v in ROW.items() if k != "sentence"}, "sentence"),
        ('{"task": "bytes", "ru', "Unterminated"),
        ("[]", "array"),
    ],
)
def test_a_line_that_is_no_run_is_named(tmp_path, line, why):
    with pytest.raises(LaconicError, match=rf"bytes-depth\.jsonl, line 2 is no measured run .*{re.escape(why)}"):
        read(write(tmp_path, ROW, line))


def test_the_rows_that_are_shipped_can_be_read():
    assert all(run.steps <= 4 * run.full_steps for run in read(FOLDER))
