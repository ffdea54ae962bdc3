"""Every command that starts no process, with fuzzed arguments, and with fuzzed files as arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner
from typer.main import get_command

from laconic.cli.app import app
from laconic.errors import LaconicError
from tests.fuzz.readers import NETWORK, curves, nccl_times, throughputs
from tests.fuzz.trying import Subject
from tests.profile.test_values import profile
from tests.report.page import samples

_COMMAND = get_command(app)
LINES = {
    "list": ("list sync", "list compression --json", "list --grade fixture", "list --rivals"),
    "show": ("show topk", "show torch:ddp16", "show iteration_dag"),
    "bounds": (
        "bounds --workers 8 --iterations 1000 --epsilon 0.01 --sigma 1 --gap 1 --mu 0.1 --distance 2",
        "bounds --workers 4 --speeds 1,1,1,0.2 --tau-avg 3 --tau-max 9 --gradient-bound 2 --smoothness 1 --json",
        "bounds --model-bytes 100MiB --step-seconds 50ms --round-seconds 200ms",
    ),
    "mixing": ("mixing ring star(0.2) --workers 8 --workers 5", "mixing exponential --workers 4 --matrix"),
    "iteration": ("iteration p.json --gpu v100 --workers 4 --servers 2 --network 10gbit --latency 50us --json",),
    "plan": (
        "plan resnet50 --gpu v100 --workers 4 --network 10gbit --latency 20us --batch 32 --top 3 --strategy bsp",
        "plan resnet50 --gpu a100 --workers 2 --objective cost --price 2 --price-per-gigabyte 0.1 --strategy local(8)",
        "plan gpt2 --gpu h100 --workers 2 --objective energy --watts 300 --slowness 1,2 --strategy bsp --json",
        "plan resnet50 --gpu v100 --loss-budget 0.5% --servers 1 --workers 4 --strategy asp --strategy bsp",
    ),
    "ablate --list": ("ablate --list bsp/topk(0.01)+ef no.py",),
    "run, refused": (
        "run --workers 0 train.py --slowness 1,2",
        "run --workers 2 --strategy nothing train.py",
        "run --engine virtual --network 1Gbit --workers 2 no.py",
        "run --target loss=1 --stragglers 0.2x3 --timeout 5 no.py",
    ),
    "compare, refused": (
        "compare --strategy bsp --strategy local(period={4|8}) --workers 2 --engine virtual no.py",
        "compare --protocol --lr 0.1 --seeds 0,1 --choosing-seeds 2,3 --target loss=1 --strategy bsp no.py",
    ),
    "net limit, refused": ("net limit --rate 100Mbit --worker 1 none-of-ours",),
    "data": ("data --json", "data --data ."),
    "net cut, refused": ("net cut none-of-ours 1",),
}


def commands() -> Iterator[Subject]:
    """Yield every command as a subject, once for each line of arguments."""
    network, model = {"n.toml": NETWORK}, {"p.json": profile().to_json().encode()}
    for name, lines in LINES.items():
        for line in lines:
            files = {"line": line.encode(), **(model if "p.json" in line else {})}
            yield Subject(name, files, _line(name), valid="refused" not in name)
    yield _reading("explain FILE", model, "explain", "bsp", "--profile", "p.json", "--network", "1Gbit", "--json")
    yield _reading("explain FILE, its links", model, "explain", "bsp / auto", "--profile", "p.json")
    yield _reading("iteration FILE", model, "iteration", "p.json", "--network", "10gbit")
    yield _reading("plan FILE", model, "plan", "p.json", "--workers", "4", "--strategy", "local(8)")
    zoo = ("plan", "resnet50", "--gpu", "v100", "--workers", "4", "--strategy", "bsp")
    yield _reading("plan --network FILE", network, *zoo, "--network", "n.toml")
    plan = {"plan.json": samples.advice().to_json().encode()}
    yield _reading("report FILE", plan, "report", "plan.json", "--out", "page.html")
    yield _reading("validate published", throughputs(), "validate", "--data", ".", "--section", "published")
    others = ("--section", "nccl", "--section", "pollux")
    yield _reading("validate nccl, pollux", {**nccl_times(), **curves()}, "validate", "--data", ".", *others)


def _line(name: str) -> Callable[[Path], object]:
    """Return a function that runs this command, and no other, with the words of a line as arguments."""
    begin = name.partition(",")[0].split()

    def read(folder: Path) -> None:
        words = os.fsdecode((folder / "line").read_bytes().replace(b"\0", b"")).split(
            " "
        )  # arguments have no zero byte
        with chdir(folder):
            invoke([*begin, *words[len(begin) :]])

    return read


def _reading(name: str, files: dict[str, bytes], *line: str) -> Subject:
    def read(folder: Path) -> None:
        with chdir(folder):
            invoke(line)
        (folder / "page.html").unlink(missing_ok=True)

    return Subject(name, files, read)


def invoke(line: list[str] | tuple[str, ...]) -> None:
    """Run a command here; raise what it raises, and a refusal where it prints one."""
    with patch.dict(os.environ):
        os.environ.pop("LACONIC_DATA", None)
        result = CliRunner().invoke(_COMMAND, list(line))
    if isinstance(result.exception, SystemExit):
        if result.exit_code and not result.output.strip():
            raise AssertionError(f"exit code {result.exit_code} without a sentence")
        if result.exit_code:
            raise LaconicError(result.output)
    elif result.exception is not None:
        raise result.exception
