"""The convergence guarantee of a strategy in a phrase: from the claims of its words, never from measurements."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from laconic import registry
from laconic.claims import Lossless
from laconic.compression.optional import contraction_of, is_transparent, joins_of, variance_of, wire_of
from laconic.compression.wrapper import Memory
from laconic.language.word import Word
from laconic.strategy import Sentence, Strategy
from laconic.sync.base import NO_GUARANTEE, Sync
from laconic.values.tensor_spec import TensorSpec

EXACT = "the same mathematics as synchronous SGD"
_SIDE = 64  # of the matrix for which δ and ω are given: some depend on the size of a tensor


def guarantee_of(strategy: Strategy | str) -> tuple[bool, str]:
    """Return whether a strategy is exactly synchronous SGD (in the precision of the gradients), and its guarantee.

    For phases, tiers and maps every part that is not exact is listed: together they guarantee what the weakest does.
    """
    strategy = Strategy.parse(strategy)
    if isinstance(strategy, Sentence):
        promises = [p for p in (_of_sync(strategy.sync), _of_chain(strategy.compression)) if p is not None]
        return not promises, "; ".join(promises) or EXACT
    inner = [guarantee_of(part) for part in strategy.parts_within]
    phrases = dict.fromkeys(phrase for exact, phrase in inner if not exact)
    return not phrases, "; ".join(phrases) or EXACT


def is_sixteen_bits(chain: tuple[Word, ...]) -> bool:
    """Return whether a chain of compressors only rounds to 16 bits, which are sent and summed."""
    wire = wire_of(registry.compose([word.make() for word in chain]))
    return wire is not None and wire.itemsize == 2


@lru_cache(maxsize=1024)
def _of_sync(word: Word) -> str | None:
    """Return the guarantee of a sync rule, or None if it averages every step's gradients."""
    rule: Sync = word.make()
    return rule.guarantee


@lru_cache(maxsize=1024)
def _of_chain(words: tuple[Word, ...]) -> str | None:
    """Return the guarantee of a chain of compressors, or None if all workers end with the exact mean.

    ω bounds the variance of an unbiased compressor, E|C(x) - x|² ≤ ω|x|²; δ is the contraction, E|C(x) - x|² ≤
    (1 - δ)|x|².
    """
    links = [word.make() for word in words]
    if all(is_transparent(link) or _claims_exactness(word) for word, link in zip(words, links, strict=True)):
        return None
    memory = links.pop() if len(links) > 1 and isinstance(links[-1], Memory) else None
    inner = [link for link in links if not joins_of(link)]
    made = registry.compose(inner)
    omega, delta, bits = _promises(made)
    names = "+".join(link.name for link in inner)
    if bits is not None:
        return f"numbers rounded to {bits} bits" + (", with error feedback" if memory else "")
    if memory is not None:
        unknown = f"{names} has the memory {memory.name}, but promises no contraction: {NO_GUARANTEE}"
        return memory.guarantee(omega, delta) or unknown
    if omega is not None:
        return f"unbiased (ω = {omega:.2g}): SGD's rate, with noise 1 + ω times as large"
    if delta is not None:
        return f"contraction (δ = {delta:.2g}) without memory, so biased: {NO_GUARANTEE}"
    return f"{names}: {NO_GUARANTEE}"


def _promises(made: Any) -> tuple[float | None, float | None, int | None]:
    """Return ω and δ of a compressor on a matrix, and the bits of a value if it only casts; scaled by 1/(1+ω), an
    unbiased one has δ = 1/(1+ω)."""
    spec = TensorSpec("x", (_SIDE, _SIDE), torch.float32)
    omega, delta, wire = variance_of(made, spec), contraction_of(made, spec), wire_of(made)
    scaled = 1 / (1 + omega) if delta is None and omega is not None else delta
    return omega, scaled, None if wire is None else 8 * wire.itemsize


def _claims_exactness(word: Word) -> bool:
    return any(isinstance(claim, Lossless) for claim in registry.find(word.name).claims)
