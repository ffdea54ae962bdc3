"""What is compared: sentences with a knob to tune, on populations of clients, in the order in which they matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

RATES = (0.1, 0.03, 0.3, 0.01, 0.003)
TUNING_SEED, SEEDS = 100, (0, 1, 2)
TUNING = 0.2
"""The share of the rounds that a trial of a rate or a knob has."""
PARTITIONS = ("dirichlet 0.1", "dirichlet 0.5", "two labels")
SILOS = "silos"
"""Ten clients that all take part, with a fifth of the images: what `apf` asks for."""

RULES = {
    "fedavg": ("fedavg({clients}, batch=50)", ()),
    "fedprox": ("fedprox({clients}, batch=50, mu={knob})", (0.01, 0.1)),
    "fednova": ("fednova({clients}, batch=50)", ()),
    "scaffold": ("scaffold({clients}, batch=50)", ()),
    "fedadam": ("fedopt({clients}, batch=50, server_rate={knob})", (0.01, 0.003, 0.03)),
    "fedbuff": ("fedbuff({clients}, batch=50, at_work={more}, server_rate={knob})", (1.0, 2.0)),
}
"""Sentences of the rules, each with the values of its own knob that are tried, at the first of which rates are."""
COMPRESSED = {
    "topk": "fedavg({clients}, batch=50) / topk(0.01)",
    "topk+ef": "fedavg({clients}, batch=50) / topk(0.01)+ef",
    "stc": 'fedavg({clients}, batch=50) / stc(0.01)+ef / server(down="stc(0.01)")',
}
SPARSE = ("topk", "topk+ef")
IN_SILOS = {
    "fedavg": ("fedavg({everyone}, batch=100)", ()),
    "apf": ("apf({everyone}, batch=100, threshold={knob})", (0.05,)),
    "apf 0.2": ("apf({everyone}, batch=100, threshold={knob})", (0.2,)),
}


@dataclass(frozen=True)
class Method:
    """A sentence on a population.

    - `name`: as tables call it.
    - `population`: one of `PARTITIONS`, or `SILOS`.
    - `share`: of the clients that take part in a round: 0.1, 0.01, or 1 in silos.
    - `template`: the sentence, with places for the numbers of clients and for the knob.
    - `knobs`: values of the rule's own knob.
    - `longer`: how many times as many rounds it has.
    """

    name: str
    population: str
    share: float
    template: str
    knobs: tuple[float, ...] = ()
    longer: int = 1

    def sentence(self, clients: int, knob: float | None) -> str:
        """Return the sentence for a population of so many clients."""
        taking = max(1, round(self.share * clients))
        return self.template.format(clients=taking, more=3 * taking, everyone=clients, knob=knob)


def tiers() -> Iterator[list[Method]]:
    """Yield methods in the order in which they matter: first rules on all partitions."""
    yield [Method(name, part, 0.1, *RULES[name]) for name in RULES for part in PARTITIONS]
    yield list(_compressed("dirichlet 0.5"))
    yield [Method(name, SILOS, 1.0, *IN_SILOS[name]) for name in IN_SILOS]
    yield [*_compressed("dirichlet 0.1"), Method("stc", "two labels", 0.1, COMPRESSED["stc"])]


def _compressed(population: str) -> Iterator[Method]:
    """Yield compressors where a tenth of the clients takes part, and with fewer of them in more rounds."""
    for name, template in COMPRESSED.items():
        yield Method(name, population, 0.1, template)
    yield Method("fedavg", population, 0.01, RULES["fedavg"][0], longer=3)
    for name in SPARSE:
        yield Method(name, population, 0.01, COMPRESSED[name], longer=3)
