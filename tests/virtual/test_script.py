"""Whole scripts on virtual workers, through the command line a person uses."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from laconic.errors import LaconicError
from laconic.network.network_tree import Level, Network
from laconic.virtual.setup import VirtualSetup
from tests.real.launching import COMMAND, SOURCE, START_SECONDS

TRAIN = Path(__file__).parents[1] / "real" / "scripts" / "train.py"
SETTING = """
[network]
lanes = 1
levels = [
    {workers = 1, bandwidth = "1Gbit", latency = "20us"},
    {workers = 2, bandwidth = "100Mbit", latency = "10ms"},
]
[compute]
forward = "10ms"
backward = "20ms"
slowness = [1, 1, 1, 2]
straggling = {probability = 0.2, factor = 3}
"""


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LACONIC_RUN")}
    return subprocess.run(
        [*COMMAND, "--folder", str(folder), *arguments],
        env={**environment, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


@pytest.mark.long
def test_the_same_script_ends_the_same_on_both_engines(tmp_path: Path) -> None:
    digests = []
    for engine in ("real", "virtual"):
        result = tmp_path / f"{engine}.digest"
        done = run(
            "--engine",
            engine,
            "--workers",
            "2",
            str(TRAIN),
            "--steps",
            "20",
            "--result",
            str(result),
            folder=tmp_path / engine,
        )
        assert done.returncode == 0, done.stderr
        assert "step 19" in done.stdout
        digests.append(result.read_text())
    assert digests[0] == digests[1]
    record = json.loads((tmp_path / "virtual" / "run.json").read_text())
    assert record["engine"] == "virtual" and record["result"]["virtual_seconds"] > 0
    assert "step 19" in (tmp_path / "virtual" / "logs" / "rank-1.log").read_text()


def test_a_setting_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.write_text(SETTING)
    setup = VirtualSetup.read(str(file), 4)
    assert setup.network == Network(4, (Level(1, 1e9, 2e-5), Level(2, 1e8, 0.01)), lanes=1)
    assert setup.compute.forward_seconds == 0.01 and setup.compute.factor(3, 0) in (2.0, 6.0)
    for text, sentence in [("none.toml", "there is no network file"), ("fast", "is no rate")]:
        with pytest.raises(LaconicError, match=sentence):
            VirtualSetup.read(text, 4)
    file.write_text("[compute]")
    with pytest.raises(LaconicError, match="does not describe a network"):
        VirtualSetup.read(str(file), 4)


SCRIPTS = {
    "distributed": ("import torch.distributed as dist\ndist.init_process_group('gloo')", r"laconic\.rank"),
    "sampler": (
        "from torch.utils.data import DistributedSampler\nDistributedSampler(range(8))",
        r"laconic\.shard",
    ),
    "exit": ("import sys\nsys.exit(3)", "ended with 3"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_what_virtual_workers_cannot_do_is_refused_by_name(tmp_path: Path, name: str) -> None:
    source, sentence = SCRIPTS[name]
    script = tmp_path / "script.py"
    script.write_text(source)
    done = run("--engine", "virtual", "--workers", "2", str(script), folder=tmp_path / "run")
    assert done.returncode == 2
    assert re.search(sentence, done.stderr), done.stderr


@pytest.mark.long
def test_loaders_and_compiled_models_run_in_process_with_one_notice(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, random, torch, laconic\n"
        "from torch.utils.data import DataLoader\n"
        "assert __name__ == '__main__' and sys.modules['__main__'].__dict__ is globals()\n"
        "mine = laconic.rank()\n"
        "loader = DataLoader(laconic.shard(range(40)), batch_size=5, num_workers=2)\n"
        "model = torch.nn.Linear(1, 1)\n"
        "model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01))\n"
        "compiled = torch.compile(model)\n"
        "for x in loader:\n"
        "    compiled(x.float()[:, None]).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "    sys.argv.append('mine'); assert mine == laconic.rank()\n"
        "assert len(sys.argv) == 1 + len(loader), sys.argv\n"
    )
    done = run("--engine", "virtual", "--workers", "4", str(script), folder=tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("num_workers=0") == 1 and done.stderr.count("eager") == 1


@pytest.mark.long
def test_options_that_make_no_sense_together_are_refused(tmp_path: Path) -> None:
    for arguments, sentence in [
        (("--network", "1gbit"), "add --engine virtual"),
        (("--engine", "virtual", "--timeout", "9"), "run in one process"),
        (("--engine", "steam"), "real or virtual"),
    ]:
        done = run(*arguments, str(TRAIN), folder=tmp_path / "run")
        assert done.returncode == 2 and sentence in done.stderr, done.stderr


LINK = '[network]\nlevels = [{bandwidth = "1Gbit"}]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{LINK}[compute]\nfoward = "3s"', "no 'foward'"),
        ('[network]\nlevels = [{bandwith = "1Gbit"}]', "no 'bandwith'"),
        (f"{LINK}[compute]\nslowness = []", "slowness"),
        (f"{LINK}[compute]\ntrace = [[]]", "trace"),
        (f"{LINK}lanes = 0", "at least one lane"),
        ('[network]\nlevels = ["x"]', "does not describe a network"),
        (f"{LINK}[compute]\nstraggling = {{probability = 0.1, factor = -3}}", "factor"),
        ("[net]\nlevels = []", "no table"),
    ],
)
def test_network_files_that_make_no_sense_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text(text)
    with pytest.raises(LaconicError, match=words):
        VirtualSetup.read(str(path), 4)
