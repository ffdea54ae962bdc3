"""Files of jobs for a Ray cluster: what they become, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.cluster.data_parallel import DataParallel
from laconic.cluster.job import Fixed
from laconic.cluster.readers.jobs_file import read_jobs
from laconic.errors import ClusterError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster_jobs.toml"


def test_the_example_is_read() -> None:
    (digits, trains), (stands_in, waits) = read_jobs(EXAMPLE)
    assert digits.progress == DataParallel(3000.0, 0.02) and digits.workers == 2
    assert trains.place.endswith(":Digits") and trains.arguments == {"strategy": "local(4) / topk(0.1)+ef"}
    assert stands_in.progress == Fixed(10.0) and stands_in.arrival == 30.0
    assert waits.arguments == {"progress": stands_in.progress}


def test_an_elastic_job_has_its_bounds(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[[job]]\nname = "a"\ngpus = 2\nleast = 1\nmost = 4\nplace = "a.py:A"\nsteps = 5\nsync_seconds = 0.5'
    )
    ((job, _),) = read_jobs(path)
    assert (job.least, job.most) == (1, 4)
    assert job.progress == DataParallel(5.0, 1.0, 0.5, 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[job]]\nname = "a"\ngpus = 1', "a does not say what it does"),
        ('[[job]]\nname = "a"\ngpus = 1\nplace = "a.py:A"', "a does not say what it does"),
        ('[[job]]\nname = "a"\ngpus = 1\nseconds = 5\nsecond = 6', "unknown 'second'"),
        ('[[job]]\nname = "a"\ngpus = 0\nseconds = 5', "no file of jobs"),
        ('[[job]]\nname = "a"\ngpus = 1.5\nseconds = 5', "a asks for 1.5 GPUs"),
        ("[[job]\n", "no file of jobs"),
        ("", "there is no"),
    ],
)
def test_what_no_job_is_made_of_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(ClusterError, match=words):
        read_jobs(path)


def test_without_ray_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(app, ["cluster", "run", str(EXAMPLE), "--folder", str(tmp_path)])
    assert isinstance(result.exception, ClusterError)
    assert "pip install 'laconic[cluster]'" in str(result.exception)
