"""Compressions that are arguments of other words, such as `ps(down=int8)`."""

from __future__ import annotations

from laconic.compression.base import Compressor
from laconic.compression.optional import has_memory
from laconic.errors import StrategyError
from laconic.strategy import Sentence, Strategy


def downward_compressor(word: str, chain: str) -> Compressor:
    """Return the compressor of what a server sends, which remembers by itself what it has not sent.

    - `word`: that has it as its argument `down`.
    - `chain`: the words of the compression.
    """
    strategy = Strategy.parse(chain)
    if not isinstance(strategy, Sentence) or str(Sentence(compression=strategy.compression)) != str(strategy):
        raise StrategyError(f'{word}(down={chain}) is no compression alone; write bf16, int8 or "topk(0.01)"')
    compressor: Compressor = strategy.compressor
    if has_memory(compressor):
        raise StrategyError(
            f"{word}(down={chain}): the server remembers anyway what it has not sent to a reader; write a compressor "
            "without a memory of its own, as topk"
        )
    return compressor
