"""DiLoCo against synchronous AdamW on text, at the same number of samples."""

from __future__ import annotations

import math
from statistics import mean

import pytest
import torch

import laconic
from tests.data import FOLDER
from tests.test_examples import loaded

WORKERS, STEPS, BEGINNING, PERIOD, BATCH = 4, 1200, 300, 50, 8
RATE = 8e-3  # the best of 0.002, 0.004, 0.008 and 0.016 for bsp and for DiLoCo: an untuned bsp is easily beaten


def scheduled(step: int) -> float:
    return RATE * min(1.0, (step + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))


def final_loss(strategy: str, seed: int) -> float:
    """Of 4 workers' common model on 100,000 held-out characters, after steps whose rate decays over all of them."""
    chars = loaded("chars")
    shape = chars.Shape(depth=1, width=32, context=32)
    training, held_out, characters = chars.load_text(FOLDER / "text" / "tinyshakespeare.txt")

    def body() -> float | None:
        model = chars.build_model(seed, characters, shape)
        model, optimizer = laconic.distribute(model, torch.optim.AdamW(model.parameters(), lr=RATE), strategy)
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = scheduled(step)
            batch = chars.draw_batch(training, shape.context, BATCH, (seed, step, laconic.rank()))
            chars.loss_of(model, *batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        laconic.finish(model, optimizer)
        return chars.validate(model, held_out, shape.context, 100_000) if laconic.rank() == 0 else None

    return float(laconic.simulate(body, WORKERS).results[0])


@pytest.mark.long
def test_it_ends_near_bsp_and_below_averaging() -> None:
    """All begin with a quarter of the steps synchronous: the paper's DiLoCo starts from a pre-trained model.

    At bsp's best rate the distance is 2.0 %, so that "within 2 %" is not claimed; at 0.004, where bsp itself is worse,
    it is 1.2 %.
    """
    if not (FOLDER / "text" / "tinyshakespeare.txt").is_file():
        pytest.skip(f"there is no text in {FOLDER}: set LACONIC_DATA to the folder with the project's data")
    rows = {
        "bsp": "bsp",
        "diloco": f"bsp until step {BEGINNING}, then diloco(period={PERIOD})",
        "averaging": f"bsp until step {BEGINNING}, then diloco(period={PERIOD}, lr=1, momentum=0)",
        "accumulating": f"bsp until step {BEGINNING}, then grad_accumulation(steps={PERIOD})",
    }
    losses = {name: [final_loss(strategy, seed) for seed in range(3)] for name, strategy in rows.items()}
    for name, found in losses.items():
        print(f"{name:12} {mean(found):.4f}  {mean(found) / mean(losses['bsp']):.4f}  {[f'{x:.4f}' for x in found]}")
    assert mean(losses["diloco"]) < 1.03 * mean(losses["bsp"])
    assert mean(losses["diloco"]) < mean(losses["averaging"])
