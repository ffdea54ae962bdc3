"""The convergence guarantee of a strategy in a phrase: from the claims of its words, never from measurements."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from laconic import registry
from laconic.claims import Lossless
from laconic.language.word import Word
from laconic.strategy import ERROR_FEEDBACK, Sentence, Strategy

EXACT = "the same mathematics as synchronous SGD"
NONE_KNOWN = "no guarantee declared"
_SIDE = 64  # of the matrix for which δ and ω are given: some depend on the size of a tensor
_CARRIERS = ("flat", "ring_hop")  # how values are packed together: lossless if the compressor they carry is


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


@lru_cache(maxsize=1024)
def _of_sync(word: Word) -> str | None:
    """Return the guarantee of a sync rule, or None if it averages every step's gradients."""
    rule: Any = word.make()
    if word.name == "bsp":
        return None
    if word.name == "grad_accumulation":
        return f"synchronous SGD with batches {rule.steps} times as large" if rule.steps > 1 else None
    if rule.steers and not rule.races:
        return "synchronous SGD with a batch or learning rate of its own"
    if rule.talks == "mix":
        return "workers agree in the limit only: SGD's rate after a transient that the graph sets (Lian et al., 2017)"
    if rule.talks == "shared":
        return "no locks: proven where gradients are sparse (Recht et al., 2011)"
    if rule.talks == "server":
        bound = getattr(rule, "staleness", None)
        if isinstance(bound, int):
            return f"staleness at most {bound}: SGD's rate, slowed by the bound (Ho et al., 2013)"
        return "staleness without a bound: a rate in the mean delay only (Koloskova et al., 2022)"
    if word.name in ("local_sgd", "adacomm"):
        return f"{rule.period} local steps: SGD's rate if the learning rate shrinks with the period (Stich, 2019)"
    if word.name in ("diloco", "slowmo", "streaming_diloco"):
        return f"{rule.period} local steps, then an outer one: SGD's rate with SGD inside (Reddi et al., 2021)"
    return f"{word.name}: {NONE_KNOWN}"


@lru_cache(maxsize=1024)
def _of_chain(words: tuple[Word, ...]) -> str | None:
    """Return the guarantee of a chain of compressors, or None if all workers end with the exact mean.

    ω bounds the variance of an unbiased compressor, E|C(x) - x|² ≤ ω|x|²; δ is the contraction, E|C(x) - x|² ≤
    (1 - δ)|x|².
    """
    if all(word.name in _CARRIERS or _claims_exactness(word) for word in words):
        return None
    memory = words[-1] if len(words) > 1 and words[-1].name in (ERROR_FEEDBACK, "ef21", "diana", "marina") else None
    inner = [word for word in words[: -1 if memory else None] if word.name != "flat"]
    made = registry.compose([word.make() for word in inner])
    omega, delta, bits = _promises(made)
    names = "+".join(word.name for word in inner)
    if bits is not None:
        return f"numbers rounded to {bits} bits" + (", with error feedback" if memory else "")
    if memory is not None and memory.name in ("diana", "marina") and omega is not None:
        return f"unbiased (ω = {omega:.2g}) with {memory.name}: SGD's rate, the noise of compression dying out"
    if memory is not None and memory.name in (ERROR_FEEDBACK, "ef21") and delta is not None:
        how = "error feedback" if memory.name == ERROR_FEEDBACK else "EF21"
        return f"contraction (δ = {delta:.2g}) with {how}: SGD's rate after a burn-in of order 1/δ"
    if memory is None and omega is not None:
        return f"unbiased (ω = {omega:.2g}): SGD's rate, with noise 1 + ω times as large"
    if memory is not None:
        return f"{names} has the memory {memory.name}, but promises no contraction: {NONE_KNOWN}"
    if delta is not None:
        return f"contraction (δ = {delta:.2g}) without memory, so biased: {NONE_KNOWN}"
    return f"{names}: {NONE_KNOWN}"


def _promises(made: Any) -> tuple[float | None, float | None, int | None]:
    """Return ω and δ of a compressor on a matrix, and the bits of a value if it only casts; scaled by 1/(1+ω), an
    unbiased one has δ = 1/(1+ω)."""
    import torch

    from laconic.compression.optional import contraction_of, variance_of, wire_of
    from laconic.values.tensor_spec import TensorSpec

    spec = TensorSpec("x", (_SIDE, _SIDE), torch.float32)
    omega, delta, wire = variance_of(made, spec), contraction_of(made, spec), wire_of(made)
    scaled = 1 / (1 + omega) if delta is None and omega is not None else delta
    return omega, scaled, None if wire is None else 8 * wire.itemsize


def _claims_exactness(word: Word) -> bool:
    return any(isinstance(claim, Lossless) for claim in registry.find(word.name).claims)
