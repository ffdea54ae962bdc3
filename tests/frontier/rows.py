"""Made-up trainings with known answers: DDP's loss is a power of its tokens, and every method has a gap of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from laconic.planner.runs import Run

SLOPE = 0.06  # of DDP's loss over tokens, in logarithms
RATES = (5e-4, 1e-3, 2e-3)
BEST = 1e-3
RUNGS = {"breadth": (3_000_000, 1500, 1.3), "depth": (10_000_000, 3000, 1.05), "confirm": (30_000_000, 3000, 0.95)}
SHARES = (0.5, 0.7, 0.85)


def one(sentence: str = "bsp", **changed: object) -> Run:
    """Return a reported run of a small model."""
    given: dict[str, object] = {
        **{"task": "bytes", "rung": "breadth", "kind": "transformer", "parameters": 3_000_000, "tensors": 40},
        **{"workers": 8, "optimizer": "adamw", "samples_per_step": 16384, "sentence": sentence, "lr": BEST, "seed": 1},
        **{"steps": 1500, "full_steps": 1500, "purpose": "report", "loss": 1.3, "bytes": 1e9},
    }
    return Run(**{**given, **changed})  # type: ignore[arg-type]


def ladder(
    gaps: Mapping[str, float],
    seeds: Sequence[int] = (1, 2, 3),
    noise: float = 0.0,
    rungs: Sequence[str] = ("breadth",),
    shrinks: float = 1.0,
    draw: int = 0,
    bytes_per_parameter: Mapping[str, float] | None = None,
    **changed: object,
) -> tuple[Run, ...]:
    """Return rate, reported, short and (of bsp) fewer-token runs of these sentences and `bsp`.

    A sentence's loss is (1 + gap) times DDP's; on each further rung the gap is multiplied by `shrinks`. Every seed has
    a loss of its own that all sentences share, and `noise` is what they do not share, both in logarithms.
    """
    random_ = random.Random(draw)
    sent = bytes_per_parameter or {}
    found: list[Run] = []
    for place, rung in enumerate(rungs):
        parameters, steps, level = RUNGS[rung]
        shared = {seed: random_.gauss(0, 0.01) for seed in (0, *seeds)}

        def loss(gap: float, seed: int, share: float = 1.0, level: float = level, shared: dict = shared) -> float:
            return level * (1 + gap) * share**-SLOPE * math.exp(shared[seed] + random_.gauss(0, noise))

        for sentence, gap in {"bsp": 0.0, **gaps}.items():
            own = gap * shrinks**place
            nbytes = sent.get(sentence, {"bsp": 7.0, "bsp / cast_bf16": 3.5}.get(sentence, 0.07)) * parameters

            def made(
                seed: int,
                loss: float,
                share: float = 1.0,
                lr: float = BEST,
                purpose: str = "report",
                of: tuple = (rung, parameters, steps, sentence, nbytes),
            ) -> Run:
                rung, parameters, steps, sentence, nbytes = of
                taken = round(steps * share)
                about = {"rung": rung, "parameters": parameters, "steps": taken, "full_steps": steps, "seed": seed}
                return one(sentence, **{**about, "lr": lr, "purpose": purpose, "loss": loss, "bytes": nbytes * taken})

            for lr in RATES:
                found.append(made(0, loss(own, 0, 0.15) * (1 + 0.05 * (lr != BEST)), 0.15, lr, "rate"))
            found += [made(seed, loss(own, seed)) for seed in seeds]
            found += [made(seed, loss(own, seed, 0.1), 0.1, purpose="short") for seed in seeds]
            if sentence == "bsp":
                found += [made(s, loss(0.0, s, share), share, purpose="fewer") for share in SHARES for s in seeds]
    from dataclasses import replace

    return tuple(replace(run, **changed) for run in found)  # type: ignore[arg-type]
