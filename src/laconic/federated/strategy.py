"""Federated sentences: `fedavg(clients=10, epochs=5) / topk(0.01)+ef / server(down=int8)`."""

from __future__ import annotations

from dataclasses import dataclass, field

from laconic.compression.base import Compressor
from laconic.errors import StrategyError
from laconic.federated.rule import Rule
from laconic.federated.structure import OneServer, Structure
from laconic.language.grammar import parse_federated
from laconic.language.word import FederatedWord, Word
from laconic.strategy import Sentence
from laconic.worker import Gather, GatherRagged, Reduce


@dataclass(frozen=True)
class FederatedStrategy:
    """A rule, the compression of what clients send, and how they reach the server."""

    rule: Rule
    compression: tuple[Word, ...] = field(default_factory=lambda: (Word("none"),))
    structure: Structure = field(default_factory=OneServer)

    def __post_init__(self) -> None:
        if any(request not in (Reduce, Gather, GatherRagged) for request in self.compressor.asks):
            raise StrategyError(
                f"{self.chain} needs messages between clients, which only reach the server; write a compressor that is "
                "encoded by each client alone, as int8 or topk(0.01)+ef"
            )

    @classmethod
    def parse(cls, text: str) -> FederatedStrategy:
        """Return the strategy that a sentence describes: a rule, then a compression and a structure, which may be left
        out."""
        found: dict[str, object] = {}
        for chain in parse_federated(text):
            made = chain[0].make()
            kind = next((name for name, of in _KINDS.items() if isinstance(made, of)), None)
            if kind is None or kind in found:
                raise StrategyError(
                    f"{chain[0]} cannot stand here; a federated sentence has a rule, a compression and a structure, "
                    "each once: write fedavg(clients=10) / topk(0.01)+ef / server"
                )
            found[kind] = chain if kind == "compression" else made
        if "rule" not in found:
            raise StrategyError(f"{text} names no rule; write fedavg / {text}")
        return cls(**found)  # type: ignore[arg-type]  # each by its kind

    @property
    def compressor(self) -> Compressor:
        """The compressor of what clients send."""
        compressor: Compressor = Sentence(compression=self.compression).compressor
        return compressor

    @property
    def chain(self) -> str:
        """The words of the compression."""
        return "+".join(map(str, self.compression))

    def __str__(self) -> str:
        return f"{FederatedWord.of(self.rule)} / {self.chain} / {FederatedWord.of(self.structure)}"


_KINDS: dict[str, type] = {"rule": Rule, "compression": Compressor, "structure": Structure}
