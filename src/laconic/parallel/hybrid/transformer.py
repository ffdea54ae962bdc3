"""GPT-like transformers by their sizes, with the parameters and operations that Megatron-LM's formulas give them."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.profile.name_lookup import pick


@dataclass(frozen=True)
class Transformer:
    """A GPT: learned positions, inner layers of four times the hidden size, and an output matrix that is the embedding.

    - `layers`, `hidden`, `heads`, `sequence`, `vocabulary`: its sizes; the vocabulary is padded to what ranks divide.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int = 2048
    vocabulary: int = 51200

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.heads, self.sequence, self.vocabulary)
        if min(sizes) < 1 or self.hidden % self.heads:
            raise LaconicError(f"a transformer has positive sizes, and heads that divide its hidden size: {self}")

    @property
    def parameters(self) -> float:
        """12 l h² (1 + 13/(12 h) + (V + s)/(12 l h)), of Narayanan et al., SC 2021, equation 2."""
        layers, hidden = self.layers, self.hidden
        rest = 13 / (12 * hidden) + (self.vocabulary + self.sequence) / (12 * layers * hidden)
        return 12 * layers * hidden**2 * (1 + rest)

    def operations(self, batch: float) -> float:
        """Return 96 B s l h² (1 + s/(6 h) + V/(16 l h)): an iteration's, each layer's forward pass computed twice.

        This is how published figures of utilisation count (SC 2021, equation 3), whatever is really recomputed.
        """
        layers, hidden, sequence = self.layers, self.hidden, self.sequence
        rest = sequence / (6 * hidden) + self.vocabulary / (16 * layers * hidden)
        return 96 * batch * sequence * layers * hidden**2 * (1 + rest)


TRANSFORMERS: dict[str, tuple[Transformer, int]] = {
    "gpt2": (Transformer(12, 768, 12, 1024), 512),
    "gpt2-medium": (Transformer(24, 1024, 16, 1024), 512),
    "gpt2-large": (Transformer(36, 1280, 20, 1024), 512),
    "gpt2-xl": (Transformer(48, 1600, 25, 1024), 512),
    "gpt3-2.7b": (Transformer(32, 2560, 32), 512),
    "gpt3-6.7b": (Transformer(32, 4096, 32), 1024),
    "gpt3-13b": (Transformer(40, 5120, 40), 1024),
    "gpt3-175b": (Transformer(96, 12288, 96), 1536),
    "megatron-1.7b": (Transformer(24, 2304, 24), 512),
    "megatron-3.6b": (Transformer(30, 3072, 32), 512),
    "megatron-7.5b": (Transformer(36, 4096, 32), 512),
    "megatron-18.4b": (Transformer(40, 6144, 48), 1024),
    "megatron-39.1b": (Transformer(48, 8192, 64), 1536),
    "megatron-76.1b": (Transformer(60, 10240, 80), 1792),
    "megatron-145.6b": (Transformer(80, 12288, 96), 2304),
    "megatron-310.1b": (Transformer(96, 16384, 128), 2160),
    "megatron-529.6b": (Transformer(105, 20480, 128), 2520),
    "megatron-1008b": (Transformer(128, 25600, 160), 3072),
    "mt-nlg-530b": (Transformer(105, 20480, 128), 1920),
}
"""Transformers by name, each with the batch of samples that its authors trained or measured it with.

GPT-2: Radford et al. 2019. GPT-3: Brown et al. 2020, Table 2.1, its batches of tokens over 2048 and rounded, the hidden
size of 13B rounded to what its heads divide. Megatron: Narayanan et al., SC 2021, Table 1. MT-NLG: Smith et al., arXiv
2201.11990. All with Megatron-LM's padded vocabulary.
"""
_ALIASES = {"gpt3": "gpt3-175b", "mtnlg": "mt-nlg-530b", "megatron1t": "megatron-1008b"}


def transformer(name: str) -> tuple[Transformer, int]:
    """Return a transformer by its name, and its usual batch in samples."""
    return TRANSFORMERS[pick("transformer", name, TRANSFORMERS, _ALIASES)]
