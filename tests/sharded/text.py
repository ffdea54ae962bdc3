"""The reference language model, sharded: the example's transformer on Shakespeare, trained by four virtual workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.compression.codec import Codec
from tests.data import FOLDER
from tests.test_examples import loaded

STEPS, BATCH, CONTEXT, HELD_OUT = 500, 8, 32, 32_000
RATE = 8e-3  # the best of 0.004, 0.008, 0.016 and 0.032 for plain sharding, with a seed that no test uses


def untouched(session: Any) -> None:
    """Leave what the strategy says as it is."""


def sending_weights_as(codec: Codec) -> Callable[[Any], None]:
    """Send weights themselves in this codec, also where `weights=` refuses it because it is too coarse."""

    def prepare(session: Any) -> None:
        tier = session.sockets.gather.tier
        tier.compressor, tier.sends_differences = codec, False

    return prepare


@cache
def loss(
    strategy: str,
    seed: int,
    weights: str | None = None,
    prepare: Callable[[Any], None] = untouched,
) -> float:
    """Nats per character on held-out text of the weights that all workers gather after training with Adam.

    The rate rises over 50 steps and falls to a tenth by a cosine.
    """
    path = FOLDER / "text" / "tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip(f"there is no text in {FOLDER}: set LACONIC_DATA to the folder with the project's data")
    chars = loaded("chars")
    shape = chars.Shape(depth=1, width=32, context=CONTEXT)
    training, held_out, characters = chars.load_text(path)

    def body() -> float:
        mesh: Any = laconic.init_device_mesh("cpu", (laconic.size(),), mesh_dim_names=("shard",))
        model: Any = fully_shard(chars.build_model(seed, characters, shape), mesh=mesh)
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=RATE)
        model, optimizer = laconic.distribute(model, optimizer, strategy, mesh=mesh, weights=weights)
        prepare(optimizer.session)
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = scheduled(step)
            batch = chars.draw_batch(training, CONTEXT, BATCH, (seed, step, laconic.rank()))
            chars.loss_of(model, *batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():  # one pass, since each gather brings weights that are sent as differences nearer
            return float(
                chars.loss_of(
                    model, held_out[:HELD_OUT].view(-1, CONTEXT), held_out[1 : HELD_OUT + 1].view(-1, CONTEXT)
                )
            )

    first, *others = laconic.simulate(body, 4).results
    assert all(other == first for other in others)
    return float(first)


def scheduled(step: int) -> float:
    return RATE * min(1.0, (step + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
