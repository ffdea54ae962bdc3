"""Federated sentences: `fedavg(clients=10, epochs=5) / topk(0.01)+ef / server(down=int8)`."""

from __future__ import annotations

from dataclasses import dataclass, field

from laconic.architecture.ps import ParameterServer
from laconic.compression.base import Compressor
from laconic.compression.optional import refusal_of_receiver
from laconic.errors import StrategyError
from laconic.federated.layout import Layout
from laconic.federated.rule import Rule
from laconic.federated.setting import Setting
from laconic.federated.structure import OneServer, Structure
from laconic.language.grammar import parse_federated
from laconic.language.word import FederatedWord, Word
from laconic.strategy import Sentence

_VIRTUAL_HOOKS = (
    "personal",
    "asks_first",
    "clustered",
    "waits",
    "steps_alone",
    "share",
    "compressor",
    "reports",
    "takes",
    "varies",
)
"""What a rule may change that only virtual clients follow."""


@dataclass(frozen=True)
class FederatedStrategy:
    """A rule, the compression of what clients send, and how they reach the server."""

    rule: Rule
    compression: tuple[Word, ...] = field(default_factory=lambda: (Word("none"),))
    structure: Structure = field(default_factory=OneServer)

    def __post_init__(self) -> None:
        if objection := self.structure.objects(self.rule, self.compressor):
            raise StrategyError(objection)
        if (self.rule.asynchronous or self.rule.clustered) and not isinstance(self.structure, OneServer):
            raise StrategyError(
                f"aggregators are made for a round of all clients, and {self.rule.name} has none; "
                f"write {self.rule.name} / {self.chain} / server"
            )
        if objection := refusal_of_receiver(self.compressor):
            raise StrategyError(f"{self.chain}: {objection}; write int8+ef or topk(0.01)+ef")
        if not set(self.compressor.asks) <= set(ParameterServer.carries or ()):
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

    def setting(self, layout: Layout) -> Setting:
        """Return what the rule is told of the sentence, for a model of these tensors."""
        return Setting(layout, self.compressor, self.structure.downward())

    @property
    def simulated_only(self) -> str | None:
        """Why this runs on virtual clients alone, or None where real ones carry it out as well: they know rounds and
        single reports to one server, with the sentence's own compressor."""
        hooks = [name for name in _VIRTUAL_HOOKS if getattr(type(self.rule), name) is not getattr(Rule, name)]
        if hooks or not isinstance(self.structure, OneServer):
            return (
                f"{self} runs on virtual clients alone: real ones report one by one to one server, in every round the "
                "same parts, and are all sent the same; write fedavg, fedprox, fednova, scaffold, fedopt or fedbuff "
                "with server"
            )
        return None

    @property
    def chain(self) -> str:
        """The words of the compression."""
        return "+".join(map(str, self.compression))

    def __str__(self) -> str:
        return f"{FederatedWord.of(self.rule)} / {self.chain} / {FederatedWord.of(self.structure)}"


_KINDS: dict[str, type] = {"rule": Rule, "compression": Compressor, "structure": Structure}
