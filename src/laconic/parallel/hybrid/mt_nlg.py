"""The layout of Megatron-Turing NLG, and how its iterations grow shorter with replicas."""

from __future__ import annotations

from laconic.errors import LaconicError
from laconic.parallel.hybrid.megatron import pipeline_seconds
from laconic.parallel.hybrid.published import mt_nlg_layout
from laconic.parallel.hybrid.runs import Layout
from laconic.registry import technique

BATCH, STAGES = 1920, 35


@technique(
    "mt_nlg",
    axis="parallel",
    paper="Smith et al., Using DeepSpeed and Megatron to Train Megatron-Turing NLG 530B, arXiv 2201.11990, 2022",
    evidence="published",
    reproduces="seconds of an iteration on 2800 and 3360 A100, from those on 2240",
    why_no_word="It lays a model out on a grid of GPUs; a sentence says how the data-parallel ranks of that grid talk.",
)
def mt_nlg(replicas: int) -> Layout:
    """Lay out the 530-billion-parameter model: tensors 8-way in a host, 35 stages across hosts, replicas of these.

    The microbatch of one sample and what DeepSpeed's engine does with gradients and sends are our reading, as
    `published.mt_nlg_layout` says.
    """
    if replicas < 1 or BATCH % replicas:
        raise LaconicError(f"{replicas} replicas do not divide the batch of {BATCH}: write one of its divisors")
    return mt_nlg_layout(replicas)


def scaled_seconds(seconds: float, replicas: int, others: int) -> float:
    """Return an iteration's seconds with `others` replicas from those with `replicas`: as microbatches + stages - 1."""
    known, asked = (pipeline_seconds(BATCH // count, STAGES, 1.0) for count in (replicas, others))
    return seconds * asked / known
