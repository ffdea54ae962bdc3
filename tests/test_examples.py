"""The examples run as plain scripts, and a resumed run ends with the bits of an undisturbed one.

Each run is a process of its own: resuming means to start from the files alone.
"""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

import laconic
from laconic.errors import ContractError
from laconic.virtual.compute import Compute

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LINES = "She sells sea shells by the sea shore, {} of them; the shells she sells are sea shells, I am sure.\n"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Each example at a size that takes a blink."""
    text = tmp_path_factory.mktemp("text") / "shells.txt"
    text.write_text("".join(LINES.format(n) for n in range(100)))
    tiny = ["--depth", "1", "--width", "32", "--context", "16", "--batch", "2", "--every", "4", "--validate", "64"]
    few = ["--data", str(images(tmp_path_factory.mktemp("images") / "few.npz")), "--blocks", "1", "--batch", "8"]
    return {
        "digits": ["digits.py", "--epochs", "2", "--batch", "300"],
        "chars": ["chars.py", str(text), *tiny],
        "cifar": ["cifar.py", *few, "--epochs", "2"],
        "recommender": ["recommender.py", "--users", "500", "--items", "300", "--every", "4", "--validate", "100"],
    }


def images(path: Path) -> Path:
    """As CIFAR-10 is kept: JPEGs one behind another, 40 to train and 10 to test with."""
    draw, encoded = np.random.default_rng(0), []
    for _ in range(50):
        file = io.BytesIO()
        Image.fromarray(draw.integers(256, size=(32, 32, 3), dtype=np.uint8)).save(file, "jpeg")
        encoded.append(np.frombuffer(file.getvalue(), dtype=np.uint8))
    offsets = np.cumsum([0, *map(len, encoded)])
    labels, test = draw.integers(10, size=50), np.arange(50) >= 40
    np.savez(path, data=np.concatenate(encoded), offsets=offsets, labels=labels, test=test)
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One worker, whatever launcher the tests themselves run under."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LACONIC_RUN")}
    script, *rest = arguments
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *rest],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def loaded(example: str) -> ModuleType:
    """The example as a module; dataclasses look their module up by name, so it must have one."""
    name = f"laconic_example_{example}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{example}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def saved(folder: Path) -> dict[str, Any]:
    newest = folder / (folder / "latest").read_text().strip()
    content: dict[str, Any] = torch.load(newest / "rank-0.pt", weights_only=True)
    return content


@pytest.mark.long
@pytest.mark.parametrize("example", ["digits", "chars", "cifar", "recommender"])
def test_a_resumed_run_ends_with_the_bits_of_an_undisturbed_one(
    example: str, commands: dict[str, list[str]], tmp_path: Path
) -> None:
    """Six steps at once, or three and then three; digits and images cross from one epoch to the next on the way."""
    for folder, steps in (("undisturbed", 6), ("resumed", 3), ("resumed", 6)):
        done = run(*commands[example], "--steps", str(steps), "--checkpoint", str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
        assert f"step {steps}  " in done.stdout and "validation loss" in done.stdout
    undisturbed, resumed = saved(tmp_path / "undisturbed"), saved(tmp_path / "resumed")
    assert undisturbed["extra"] == resumed["extra"]
    assert undisturbed["model"].keys() == resumed["model"].keys()
    for name, tensor in undisturbed["model"].items():
        assert torch.equal(tensor, resumed["model"][name]), name


@pytest.mark.long
def test_digits_learns() -> None:
    done = run("digits.py", "--epochs", "4")
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert float(last.split()[-1].rstrip("%")) > 90, done.stdout


def test_images_are_cropped_and_mirrored_and_keep_their_labels() -> None:
    """Every image of a batch is one of those given, off the centre by four pixels at most, as it is or mirrored."""
    cifar = loaded("cifar")
    given, labels = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8), torch.arange(5)
    batch, named = cifar.draw_batch(given, labels, 40, (3, 1, 0))
    wide = functional.pad(given, (4,) * 4)
    seen = set()
    for image, label in zip(batch, named.tolist(), strict=True):
        for down, right, mirrored in product(range(9), range(9), (False, True)):
            crop = wide[label, :, down : down + 32, right : right + 32]
            if torch.equal(image, cifar.normalised(crop.flip(-1) if mirrored else crop)):
                seen.add((down, right, mirrored))
                break
        else:
            pytest.fail(f"an image of class {label} is none of those given")
    assert len(seen) > 30 and {mirrored for _, _, mirrored in seen} == {False, True}
    again, other = (cifar.draw_batch(given, labels, 40, (3, 1, rank))[0] for rank in (0, 1))
    assert torch.equal(again, batch) and not torch.equal(other, batch)


def interactions(strategy: str, dense: bool, steps: int = 6) -> tuple[list[Tensor], list[int], float]:
    """The recommender's parameters after some steps of three virtual workers, the payload that each sent in a step, and
    how many rows each used in a table and a step, on average."""
    recommender, sizes, used = loaded("recommender"), (2400, 1000), list[int]()
    world = recommender.World(*sizes, torch.device("cpu"))

    def train() -> tuple[list[Tensor], int]:
        model = recommender.build_model(1, *sizes, sparse=not dense)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        before = laconic.traffic().sent_bytes
        for step in range(steps):
            ids, visit, clicks = recommender.draw_batch(world, 50, (1, step, laconic.rank()))
            used.append(sum(len(column.unique()) for column in ids.T))
            functional.binary_cross_entropy_with_logits(model(ids, visit), clicks).backward()
            optimizer.step()
            optimizer.zero_grad()
        sent = laconic.traffic().sent_bytes - before
        return [p.detach().clone() for p in model.parameters()], sent // steps

    out = laconic.simulate(train, 3, "1Gbit", Compute(0.01, 0.02))
    assert all(torch.equal(a, b) for r in out.results[1:] for a, b in zip(r[0], out.results[0][0], strict=True))
    return out.results[0][0], [sent for _, sent in out.results], sum(used) / len(used)


def test_a_recommender_sends_the_rows_that_it_used() -> None:
    """Sparse gradients are those of a dense training, and cost what their rows cost: an index of eight bytes and
    sixteen values each to two other workers."""
    sparse, few, rows = interactions("bsp", dense=False)
    dense, many, _ = interactions("bsp", dense=True)
    for a, b in zip(sparse, dense, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    tables = 4 * 16 * (2400 + 1000 + 48 + 100)
    layers = 4 * sum(p.numel() for p in dense[4:])
    around = 2 * 2 / 3  # what a ring's all-reduce sends for each byte
    assert sum(many) / 3 == pytest.approx(around * (tables + layers), rel=0.01)
    assert sum(few) / 3 == pytest.approx(around * layers + 2 * rows * (8 + 4 * 16), rel=0.05)
    assert sum(few) < 0.3 * sum(many)


def test_rules_that_take_whole_parameters_ask_for_dense_gradients() -> None:
    with pytest.raises(ContractError, match="sparse gradients"):
        interactions("local(2)", dense=False)
    interactions("local(2)", dense=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_recommender_learns(seed: str) -> None:
    done = run("recommender.py", "--steps", "200", "--seed", seed, "--users", "480", "--items", "300", "--every", "200")
    assert done.returncode == 0 and not done.stderr, done.stderr
    first, last = done.stdout.splitlines()
    assert float(first.split()[-1]) < float(last.split()[4]) < 0.6 and float(last.split()[-1]) > 0.7, done.stdout


def test_interactions_to_validate_with_are_none_of_training() -> None:
    """numpy's generator takes a place with zeros at its end for one without them."""
    recommender = loaded("recommender")
    world = recommender.World(50, 50, torch.device("cpu"))
    held_out = recommender.draw_batch(world, 30, recommender.HELD_OUT)[1]
    for place in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]:
        assert not torch.isin(recommender.draw_batch(world, 30, place)[1], held_out).any()


def test_the_area_under_the_curve_counts_pairs() -> None:
    area = loaded("recommender").area_under_curve
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        scores, clicks = (
            torch.randint(9, (40,), generator=draw).float(),
            torch.randint(2, (40,), generator=draw).float(),
        )
        apart = scores[clicks > 0][:, None] - scores[clicks == 0]
        pairs = ((apart > 0).double() + 0.5 * (apart == 0)).mean().item()
        assert area(scores, clicks) == pytest.approx(pairs)
    assert area(torch.zeros(4), torch.tensor([0.0, 0.0, 1.0, 1.0])) == 0.5


@pytest.mark.parametrize(
    ("example", "arguments", "advice"),
    [
        ("chars", [], "pass a text file"),
        ("chars", [__file__, "--width", "33"], "give a multiple of 32"),
        ("chars", [__file__, "--every", "0"], "give 1 or more"),
        ("chars", [__file__, "--context", "100000"], "give a longer text, or --context"),
        ("digits", ["--batch", "5000"], "use a smaller one"),
        ("cifar", [], "set LACONIC_DATA, or pass --data"),
        ("recommender", ["--users", "0"], "give 1 or more"),
    ],
)
def test_bad_input_is_refused_with_the_way_out(
    example: str,
    arguments: list[str],
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of it is seen before anything is distributed, so this process can ask."""
    monkeypatch.setenv("LACONIC_DATA", "nowhere")
    with pytest.raises(SystemExit) as refusal:
        loaded(example).main(arguments)
    assert advice in f"{refusal.value} {capsys.readouterr().err}"
