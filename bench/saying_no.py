"""Test whether the planner advises against gradient compression in data centres, where it seldom pays.

    python bench/saying_no.py              # some minutes on one core

Models of the zoo on 8 to 256 GPUs, machines of eight, links of 10 to 400 Gb/s between them. In each set-up the planner
prices every gradient compression and predicts whether the best of them beats tuned DDP with 16-bit gradients by 3 %;
where it does (and in a sample of the others), the virtual engine runs both. A false "it pays" is one that the engine
refutes.

`bench/compression_study.py` has the set-ups of a published study, which found that compression seldom pays.

The engine runs with real tensors, which would take hours for whole models: so it gets every tensor, and every rate of
links and encoders with it, divided by `SHRINK`, which leaves all times as they are; but factors of low rank shrink only
by its root, so that the engine makes them dearer than they are.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from laconic.network.network_tree import Network
from laconic.planner.autotune import PAYS
from laconic.planner.candidates import chains
from laconic.planner.codec_times import codecs_on
from laconic.planner.deployment import Deployment
from laconic.planner.networks import links_of
from laconic.planner.price import Pricer
from laconic.planner.priced_candidates import CAPS, MIB
from laconic.profile.gpus import gpu, profile_of
from laconic.values.profile import CodecTimes
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute
from laconic.virtual.symmetric import price

MODELS = ("resnet50", "vgg16", "bert-base", "bert-large", "gpt2", "gpt2-medium")
RATES = (10, 25, 100, 200, 400)  # Gb/s
WORKERS = (8, 16, 32, 64, 128, 256)
CHIPS = ("v100", "a100", "h100")
DENSE = ("none", "cast_bf16", "cast_fp16")
MERGED = (f"wfbp({25 * MIB})", f"wfbp({5 * MIB})", f"wfbp({MIB})", "wfbp(0)", "sequential")
SHRINK = 256
SAMPLE = 0.05  # of the set-ups in which the planner advises against compression


@dataclass(frozen=True)
class Verdict:
    """The result for one set-up: the advised strategy over tuned DDP in 16 bits, by the planner and by the virtual
    engine."""

    model: str
    chip: str
    workers: int
    rate: int
    strategy: str
    gain: float  # of the planner
    engine_gain: float | None = None
    over_32_bits: float = 1.0  # the planner's, against DDP in 32 bits, as the study has it


def set_ups() -> Iterator[tuple[str, str, int, int]]:
    for model in MODELS:
        for chip in CHIPS:
            for workers in WORKERS:
                for rate in RATES if workers > gpu(chip).per_machine else RATES[:1]:  # within a machine no link counts
                    yield model, chip, workers, rate


def judged(model: str, chip: str, workers: int, rate: int, chance: random.Random) -> Verdict:
    kind = gpu(chip)
    links = links_of(f"{rate}gbit", workers, kind)
    deployment = Deployment(profile_of(model, kind), links.network, workers, codecs=codecs_on(kind))
    pricer = Pricer(deployment)
    lossy = [chain for chain in chains() if chain not in DENSE]
    asked = [f"bsp / {chain} / allreduce / {schedule}" for chain in lossy for schedule in MERGED]
    prices = {text: float(pricer.price(text).seconds) for text in asked}
    best = min(prices, key=lambda text: prices[text])
    caps = {cap: float(pricer.ddp("cast_fp16", cap * MIB).seconds) for cap in CAPS}
    plain = min(float(pricer.ddp("none", cap * MIB).seconds) for cap in CAPS)
    cap = min(caps, key=lambda cap: caps[cap])
    found = Verdict(model, chip, workers, rate, best, caps[cap] / prices[best], over_32_bits=plain / prices[best])
    if found.gain < PAYS and chance.random() > SAMPLE:
        return found
    ours = run(deployment, best)
    theirs = min(run(deployment, ddp16(cap), whole_buckets=True) for cap in CAPS)
    return replace(found, engine_gain=theirs / ours)


def ddp16(cap: int) -> str:
    return f"bsp / cast_fp16 / allreduce / wfbp({cap * MIB // SHRINK}, first_bytes={MIB // SHRINK})"


def run(deployment: Deployment, strategy: str, whole_buckets: bool = False) -> float:
    """Return a shrunken step of the virtual engine; `whole_buckets`: casts take no time by the tensor, as DDP's do."""
    text = strategy if whole_buckets else shrunken(strategy)
    tensors = [TensorSpec(s.name, shrink(s.shape), s.dtype) for s in deployment.tensors]
    factor = sum(s.numel for s in deployment.tensors) / sum(s.numel for s in tensors)
    codecs = tuple(scaled(c, factor, 0.0 if whole_buckets else 1.0) for c in deployment.codecs)
    levels = tuple(
        replace(level, bits_per_second=level.bits_per_second / factor) for level in deployment.network.levels
    )
    network: Network = replace(deployment.network, levels=levels)
    compute = replace(Compute.from_profile(deployment.profile), codecs=codecs)
    return float(price(text, tensors, network, compute, steps=2).step_seconds[-1])


def shrink(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same shape, SHRINK times smaller as far as whole numbers go."""
    if math.prod(shape) < 64 * SHRINK:
        return (max(1, math.prod(shape) // SHRINK),)
    root = SHRINK ** (1 / min(2, len(shape)))
    return (max(1, round(shape[0] / root)), max(1, round(math.prod(shape[1:]) / (root if len(shape) > 1 else 1))))


def shrunken(strategy: str) -> str:
    """Return the sentence with the same merges: sizes in bytes shrink too."""
    for size in (25 * MIB, 5 * MIB, MIB):
        if f"wfbp({size})" in strategy:
            return strategy.replace(f"wfbp({size})", f"wfbp({size // SHRINK}, first_bytes={MIB // SHRINK})")
    return strategy


def scaled(codec: CodecTimes, factor: float, per_tensor: float) -> CodecTimes:
    return CodecTimes(
        codec.words,
        per_tensor * codec.encode_seconds_per_tensor,
        factor * codec.encode_seconds_per_element,
        per_tensor * codec.decode_seconds_per_tensor,
        factor * codec.decode_seconds_per_element,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    chance = random.Random(0)
    found: list[Verdict] = []
    for number, one in enumerate(set_ups(), 1):
        found.append(judged(*one, chance))
        last = found[-1]
        if last.engine_gain is not None:
            gains = f"planner {last.gain:.3f}, engine {last.engine_gain:.3f}"
            print(
                f"{number:4d} {last.model} {last.workers} x {last.chip} {last.rate}G: {last.strategy}: {gains}",
                flush=True,
            )
        elif number % 50 == 0:
            print(f"{number:4d} set-ups", file=sys.stderr, flush=True)
    positive = [v for v in found if v.gain >= PAYS]
    false = [v for v in positive if v.engine_gain is not None and v.engine_gain < PAYS]
    missed = [v for v in found if v.gain < PAYS and v.engine_gain is not None and v.engine_gain >= PAYS]
    no = [v for v in found if v.gain < PAYS and v.engine_gain is not None]
    old = [v for v in found if v.over_32_bits >= PAYS]
    print(f"{len(found)} set-ups; the planner predicts that it pays in {len(positive)}, falsely in {len(false)}")
    print(
        f"falsely: {100 * len(false) / len(found):.2f} % of all set-ups; missed in {len(missed)} of {len(no)} sampled"
    )
    print(f"against DDP in 32 bits it would pay in {len(old)}")
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Verdict.__annotations__)
            writer.writerows([getattr(v, name) for name in Verdict.__annotations__] for v in found)


if __name__ == "__main__":
    main()
