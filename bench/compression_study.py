"""Set-ups like those of a published study in which gradient compression seldom pays: what its verdict depends on.

    python bench/compression_study.py --data DIR       # under a minute on one core

Agarwal et al., On the Utility of Gradient Compression in Distributed Training Systems (MLSys 2022) found compression to
pay in 6 of more than 200 set-ups against DDP in 32 bits: machines of four V100 on 10 Gb/s, computing in 32 bits, one
method at a time. The planner prices 210 such set-ups (two models, three batches, five numbers of GPUs, seven methods),
first as it would advise today, then with one condition of the study after another:

- computing as measured: ResNet-50's steps on a V100 (Narayanan et al., OSDI 2020) in place of a roofline, and BERT on
  the 512 tokens that the study's small batches suggest (the zoo has 64);
- gathered signs: every worker's signs reach every worker, where our `sign_sgd` votes in two hops;
- the study's encoders: encoding and decoding ResNet-50 on a V100, tensor by tensor and without CUDA graphs, by method
  and rank (`STUDY_MS`, after its table of these times; what could be checked is that encoding takes about 50 ms where
  communication takes 200, so they are also halved and doubled). Low rank counts by the matrix, since orthogonalising
  many small ones is launching kernels, the others by the element;
- after backward: both compete for the GPU, so nothing is encoded beside backward.

Then the bandwidth below which PowerSGD pays, which the study's own model puts at about 8 Gb/s.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from laconic.planner.autotune import PAYS
from laconic.planner.codec_times import codecs_on
from laconic.planner.deployment import Deployment
from laconic.planner.networks import links_of
from laconic.planner.price import Pricer
from laconic.planner.priced_candidates import CAPS, MIB
from laconic.profile.gpus import gpu, profile_of
from laconic.profile.gpus.measured import held_out
from laconic.profile.zoo import Tensor, bert, model
from laconic.strategy import Sentence, Strategy
from laconic.values.profile import CodecTimes, Profile, Seconds

CHIP = replace(gpu("v100"), per_machine=4)
BATCHES = {"ResNet-50": (16, 32, 64), "BERT-Base": (4, 8, 12)}
GPUS = (8, 16, 32, 64, 96)
MERGED = (f"wfbp({25 * MIB})", f"wfbp({5 * MIB})", f"wfbp({MIB})", "wfbp(0)", "sequential")
RANKS, DENSITIES = (4, 8, 16), (0.01, 0.1, 0.2)
LOW_RANK = [f"power_sgd(rank={rank})+ef" for rank in RANKS]
SPARSE = [f"topk({density})+ef" for density in DENSITIES]
STUDY_MS = dict(zip([*LOW_RANK, *SPARSE, "scaled_sign"], (45, 64, 130, 240, 289, 295, 16.34), strict=True))
UNTIMED = {LOW_RANK[1]: LOW_RANK[0], LOW_RANK[2]: LOW_RANK[0], SPARSE[2]: SPARSE[1], "scaled_sign": "scaled_sign+ef"}
"""What was not timed on an H200 counts as something that is at most as slow, which favours it."""


@dataclass(frozen=True)
class Conditions:
    """Which conditions of the study hold; none of them: what the planner would say today."""

    measured: bool = False
    gathered: bool = False
    encoders: float = 0.0  # the study's times, so many times; 0: ours
    after_backward: bool = False
    largest_batch: bool = False

    @property
    def methods(self) -> list[str]:
        return ["scaled_sign" if self.gathered else "sign_sgd", *LOW_RANK, *SPARSE]

    def tensors(self, name: str) -> tuple[Tensor, ...]:
        return tuple(bert(768, 12, 512)) if self.measured and name == "BERT-Base" else model(name)

    def codecs(self) -> tuple[CodecTimes, ...]:
        known = {codec.words: codec for codec in codecs_on(CHIP)}
        ours = {chain(text): replace(known[chain(like)], words=chain(text)) for text, like in UNTIMED.items()}
        return tuple((known | ours | (dict(self._study_codecs()) if self.encoders else {})).values())

    def _study_codecs(self) -> Iterator[tuple[str, CodecTimes]]:
        layers = model("ResNet-50")
        matrices = sum(len(tensor.shape) > 1 for tensor in layers)
        elements = sum(tensor.elements for tensor in layers)
        for text, milliseconds in STUDY_MS.items():
            seconds, words = self.encoders * milliseconds * 1e-3, chain(text)
            by_matrix = text in LOW_RANK
            yield (
                words,
                CodecTimes(
                    words, seconds / matrices if by_matrix else 0.0, 0.0 if by_matrix else seconds / elements, 0, 0
                ),
            )


def chain(text: str) -> str:
    sentence = Strategy.parse(text)
    assert isinstance(sentence, Sentence)
    return sentence.chain


def scaled_to(profile: Profile, seconds: float) -> Profile:
    """Return the profile with all times scaled so that a step takes so long."""
    times, factor = profile.model, seconds / profile.model.seconds
    parts = {part: Seconds(factor * getattr(times, part).median) for part in ("forward", "backward", "step")}
    tensors = tuple(replace(one, backward_seconds=factor * one.backward_seconds) for one in times.tensors)
    return replace(profile, model=replace(times, tensors=tensors, **parts))


def gains(
    conditions: Conditions, steps: Mapping[int, float], rate: str = "10gbit"
) -> dict[tuple[str, int, int, str], float]:
    """Return DDP's step in 32 bits over each method's, by model, batch, number of GPUs and method."""
    found = {}
    codecs = conditions.codecs()
    for name, batches in BATCHES.items():
        for batch in batches[-1:] if conditions.largest_batch else batches:
            profile = profile_of(conditions.tensors(name), CHIP, batch, "fp32")
            if conditions.measured and name == "ResNet-50":
                profile = scaled_to(profile, steps[batch])
            for workers in GPUS:
                pricer = Pricer(Deployment(profile, links_of(rate, workers, CHIP).network, workers, codecs=codecs))
                plain = min(float(pricer.ddp("none", cap * MIB).seconds) for cap in CAPS)
                for method in conditions.methods:
                    merged = ("sequential",) if conditions.after_backward else MERGED
                    best = min(float(pricer.price(f"bsp / {method} / allreduce / {one}").seconds) for one in merged)
                    found[name, batch, workers, method] = plain / best
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--data", type=Path, default=os.environ.get("LACONIC_DATA", here / ".." / "shared" / "data"))
    steps = {c.batch: c.seconds for c in held_out(Path(parser.parse_args().data)) if c.source.startswith("V100")}
    ours = Conditions()
    measured = replace(ours, measured=True)
    gathered = replace(measured, gathered=True)
    encoders = replace(gathered, encoders=1.0)
    study = replace(encoders, after_backward=True)
    print(
        "| conditions | pays in | of which ResNet-50 by batch | BERT-Base by batch | by method |\n" + "| --- " * 5 + "|"
    )
    for text, conditions in {
        "as the planner advises today": ours,
        "computing as measured": measured,
        "and signs gathered": gathered,
        "and the study's encoders": encoders,
        "and after backward": study,
        "the same, encoders half as slow": replace(study, encoders=0.5),
        "the same, encoders twice as slow": replace(study, encoders=2.0),
        "the same, largest batches": replace(study, largest_batch=True),
    }.items():
        found = gains(conditions, steps)
        pays = [key for key, gain in found.items() if gain >= PAYS]
        batches = [
            ", ".join(f"{batch}: {sum(key[:2] == (name, batch) for key in pays)}" for batch in BATCHES[name])
            for name in BATCHES
        ]
        methods = ", ".join(f"`{method}` {count}" for method, count in Counter(key[3] for key in pays).most_common())
        print(f"| {text} | {len(pays)} of {len(found)} | {' | '.join(batches)} | {methods} |", flush=True)
    print("\nResNet-50, batch 64, 64 GPUs, the study's conditions: DDP's step over that of " + LOW_RANK[0])
    for rate in (4, 6, 8, 9, 10, 12, 16):
        gain = gains(replace(study, largest_batch=True), steps, f"{rate}gbit")["ResNet-50", 64, 64, LOW_RANK[0]]
        print(f"{rate} Gb/s: {gain:.2f}", flush=True)


if __name__ == "__main__":
    main()
