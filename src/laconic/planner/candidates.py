"""The strategies that the planner prices: every chain of compressors with the schedules and rules that suit it."""

from __future__ import annotations

from collections.abc import Iterator

from laconic.errors import StrategyError
from laconic.planner.deployment import Deployment
from laconic.strategy import Sentence, Strategy

MIB = 2**20

CHAINS = (
    "none",
    "cast_bf16",
    "cast_fp16",
    "cast_fp8",
    "cast_int8",
    "blockwise_8bit",
    "bucket_means",
    "e3m0+ef",
    "mx_block_codecs(mxfp4)+ef",
    "two_bit+ef",
    "scaled_sign+ef",
    "one_bit+ef",
    "sign_sgd",
    "qsgd",
    "terngrad",
    "natural_compression",
    "three_lc+ef",
    "topk(0.1)+ef",
    "topk(0.01)+ef",
    "topk(0.001)+ef",
    "chunk_topk+ef",
    "randk(0.01, scaled=false)+ef",
    "sidco+ef",
    "scalecom+ef(low_pass=0.1)",
    "gtopk+ef",
    "power_sgd(rank=1)+ef",
    "power_sgd(rank=2)+ef",
    "power_sgd(rank=4)+ef",
    "alternating(4)+ef",
)
"""Chains of compressors, the least lossy first: one or a few settings of each family."""

DENSE = ("none", "cast_bf16", "cast_fp16")
MERGED = (f"wfbp({25 * MIB})", f"wfbp({5 * MIB})", f"wfbp({MIB})", "wfbp(0)", "sequential")
LOSSLESS_ONLY = ("mg_wfbp", "dear", f"dear({5 * MIB})", f"dear({MIB})", "bytescheduler", "auto")
PERIODS = (2, 4, 8, 16, 32, 64)


def chains() -> list[str]:
    """Return the chains whose words are registered, in canonical form."""
    return [text for text in map(_printed, CHAINS) if text is not None]


def candidates(deployment: Deployment) -> Iterator[Strategy]:
    """Yield the candidate strategies for a deployment, without those that are invalid combinations."""
    for text in _texts(deployment):
        try:
            yield Strategy.parse(text)
        except StrategyError:
            continue


def _texts(deployment: Deployment) -> Iterator[str]:
    known = chains()
    for chain in known:
        for schedule in MERGED:
            yield f"bsp / {chain} / allreduce / {schedule}"
    for schedule in LOSSLESS_ONLY:
        yield f"bsp / none / allreduce / {schedule}"
    for period in PERIODS:
        for chain in known:
            yield f"local({period}) / {chain} / allreduce"
            if period >= PERIODS[2]:
                yield f"diloco({period}) / {chain} / allreduce"
        for chain in DENSE:
            yield f"accumulate({period}) / {chain} / allreduce"
    if deployment.servers:
        for chain in DENSE:
            for schedule in MERGED:
                yield f"bsp / {chain} / ps(shards={deployment.servers}) / {schedule}"
    if deployment.units > 1:
        for chain in known:
            yield f"[bsp]@node > [bsp / {chain}]@site"
            for period in PERIODS:
                yield f"[bsp]@node > [local({period}) / {chain}]@site"
                if period >= PERIODS[2]:
                    yield f"[bsp]@node > [diloco({period}) / {chain}]@site"
    if max(deployment.slowness) > min(deployment.slowness):
        for rule in ("ssp(3)", "asp"):
            yield f"{rule} / none / ps(shards={deployment.servers or deployment.workers})"


def _printed(chain: str) -> str | None:
    try:
        made = Strategy.parse(chain)
    except StrategyError:
        return None
    return made.chain if isinstance(made, Sentence) else None
