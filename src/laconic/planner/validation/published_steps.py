"""The published experiments of Shi et al. (arXiv 2005.13247), and their prediction by the cluster model.

Only the start-up and the bandwidth of a hop between hosts are fitted to a network's throughputs. Computing times, sizes
and the price of a hop inside a host are published inputs; tensors and operations follow from the models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from laconic.cost.cluster import Cluster
from laconic.errors import LaconicError
from laconic.profile.zoo import model
from laconic.reading import NotNegative, Positive, Source
from laconic.schedule.exchange_methods import BYTESCHEDULER_A2A, METHODS, iteration_seconds
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price

GPUS = (4, 8, 16, 32)
UNEXPLAINED = {("ResNet-50", BYTESCHEDULER_A2A)}  # measured a third slower than plain all-reduces even inside one host

NCCL_STARTUP_SECONDS = 5.7e-6  # of a hop over PCIe in a ring: the constant in NCCL's own model
ADAM_PASSES, SGD_PASSES = 18, 3  # over memory to update a parameter, operation by operation
MEMORY_BYTES_PER_SECOND = 616e9  # RTX 2080 Ti

# Start-up and seconds for each byte of an all-reduce in the released MG-WFBP, which made the groups of the measured
# runs: for networks of 10 and of 56 Gb/s.
PLANNED = {
    10: {
        4: (4.2043e-5, 2.0589e-10),
        8: (5.2303e-4, 8.5707e-10),
        16: (9.0810e-4, 7.3957e-10),
        32: (4.0429e-3, 8.6433e-10),
    },
    56: {
        4: (4.2043e-5, 2.0589e-10),
        8: (9.7537e-5, 3.0568e-10),
        16: (7.0751e-4, 4.0595e-10),
        32: (4.0632e-4, 4.9070e-10),
    },
}

Facts = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Cell:
    """One published throughput with its standard deviation, in samples a second."""

    network: str
    model: str
    method: str
    gpus: int
    measured: float
    deviation: float

    @property
    def explained(self) -> bool:
        return (self.model, self.method) not in UNEXPLAINED


@dataclass(frozen=True)
class Experiments:
    """All published cells, and the inputs for predicting them (`facts`: by name and field, in SI units)."""

    cells: tuple[Cell, ...]
    facts: Facts

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.network for cell in self.cells))

    def of(self, network: str) -> tuple[Cell, ...]:
        """Return the cells of one network."""
        return tuple(cell for cell in self.cells if cell.network == network)


_SCALES = {"ms": 1e-3, "Gb/s": 1e9 / 8}


@dataclass(frozen=True)
class _Fact:
    """A row of `inputs.csv`."""

    name: str
    field: str
    value: Positive
    unit: str


@dataclass(frozen=True)
class _Throughputs:
    """A row of `throughput.csv`: by number of GPUs, empty where it was not measured."""

    network: str
    model: str
    method: Literal[tuple(METHODS)]  # type: ignore[valid-type]
    g4: Positive | Literal[""]
    g4_sd: NotNegative | Literal[""]
    g8: Positive | Literal[""]
    g8_sd: NotNegative | Literal[""]
    g16: Positive | Literal[""]
    g16_sd: NotNegative | Literal[""]
    g32: Positive | Literal[""]
    g32_sd: NotNegative | Literal[""]

    def cells(self) -> Iterator[Cell]:
        for gpus in GPUS:
            measured, deviation = getattr(self, f"g{gpus}"), getattr(self, f"g{gpus}_sd")
            if measured != "":
                yield Cell(self.network, self.model, self.method, gpus, measured, deviation or 0.0)


def read(folder: Path) -> Experiments:
    """Read the experiments from `ddl-benchmarks/` in a folder of published measurements."""
    inputs, throughputs = (_source(folder / "ddl-benchmarks" / name) for name in ("inputs.csv", "throughput.csv"))
    facts: dict[str, dict[str, float]] = {}
    for fact in inputs.rows(inputs.text(), _Fact):
        facts.setdefault(fact.name, {})[fact.field] = fact.value * _SCALES.get(fact.unit, 1.0)
    cells = [cell for row in throughputs.rows(throughputs.text(), _Throughputs) for cell in row.cells()]
    _check_complete(cells, throughputs)
    _check_facts(facts, cells, inputs)
    return Experiments(tuple(cells), facts)


def _source(path: Path) -> Source:
    instead = (
        "set LACONIC_DATA (or --data) to the folder that holds ddl-benchmarks/, the throughputs published with arXiv "
        "2005.13247; `laconic data` says where they come from"
    )
    return Source(path, "table of the survey's experiments", instead)


def _check_complete(cells: Sequence[Cell], source: Source) -> None:
    """Refuse a table in which a method is missing somewhere, or nothing is left to fit a network to."""
    if not cells:
        raise source.refused("it has no throughput")
    for network in dict.fromkeys(cell.network for cell in cells):
        own = [cell for cell in cells if cell.network == network]
        methods = dict.fromkeys(cell.method for cell in own)
        for model_, gpus in dict.fromkeys((cell.model, cell.gpus) for cell in own):
            here = [cell.method for cell in own if (cell.model, cell.gpus) == (model_, gpus)]
            if missing := [method for method in methods if method not in here]:
                raise source.refused(
                    f"{network}, {model_} on {gpus} GPUs has no {', '.join(missing)}, which other rows of this network "
                    "have: complete it, or leave that method out everywhere"
                )
            if len(set(here)) != len(here):
                raise source.refused(f"{network}, {model_} on {gpus} GPUs has a method twice")
        if not any(cell.gpus > 4 and cell.explained for cell in own):
            raise source.refused(f"{network} has no row of several hosts (more than 4 GPUs) to fit its links to")


def _check_facts(facts: Facts, cells: Sequence[Cell], source: Source) -> None:
    """Refuse a table of inputs without what a prediction of these cells needs."""
    needed = [("PCIe", "allreduce_336M_4gpu")]
    for cell in cells:
        needed += [(cell.model, "local_batch"), (cell.model, "single_gpu_iteration")]
        if cell.network in facts:
            needed += [(cell.network, "throughput_16KiB"), (cell.network, "throughput_1MiB")]
    for name, field_ in dict.fromkeys(needed):
        if field_ not in facts.get(name, {}):
            raise source.refused(f"there is no {field_} of {name}")
    for name in dict.fromkeys(cell.model for cell in cells):
        layers(name, facts[name]["single_gpu_iteration"])  # refuses a model that is not known, or a time too short


@cache
def layers(name: str, iteration_seconds: float) -> LayerTimes:
    """Divide one GPU's iteration into layer times: updates by bytes, the rest by operations, a third of it forward.

    An update is counted with its layer's forward pass, which follows it.
    """
    tensors = model(name)
    passes = ADAM_PASSES if name.startswith("BERT") else SGD_PASSES
    nbytes = tuple(4.0 * tensor.elements for tensor in tensors)
    updates = [passes * n / MEMORY_BYTES_PER_SECOND for n in nbytes]
    if iteration_seconds <= sum(updates):
        raise LaconicError(
            f"an iteration of {name} takes longer than {iteration_seconds:g} s, in which its update alone would not "
            "fit: give milliseconds, as published"
        )
    operation = (iteration_seconds - sum(updates)) / sum(tensor.operations for tensor in tensors)
    work = [operation * tensor.operations for tensor in tensors]
    forward = tuple(seconds / 3 + update for seconds, update in zip(work, updates, strict=True))
    return LayerTimes(forward, tuple(2 * seconds / 3 for seconds in work), nbytes)


def inside(facts: Facts) -> Price:
    """Return the price of a hop inside a host, from an all-reduce timed there: 336 million values, four GPUs."""
    nbytes = sum(4 * tensor.elements for tensor in model("BERT-Large"))
    return Price(NCCL_STARTUP_SECONDS, facts["PCIe"]["allreduce_336M_4gpu"] / (2 * 3 / 4 * nbytes))


def first_guess(facts: Facts, network: str) -> Price:
    """Return the price of a hop between hosts from two published message sizes, no faster than one inside a host."""
    small, large = 16 * 1024, 1024 * 1024
    if network not in facts:
        return inside(facts)
    seconds = small / facts[network]["throughput_16KiB"], large / facts[network]["throughput_1MiB"]
    each = (seconds[1] - seconds[0]) / (large - small)
    return Price(max(seconds[0] - each * small, 1e-7), max(each, inside(facts).seconds_per_byte))


def predict(cell: Cell, facts: Facts, between: Price) -> float:
    """Return the predicted throughput of a cell in samples a second."""
    given = facts[cell.model]
    cluster = Cluster(cell.gpus, inside(facts), between, planned=_planned(cell, facts))
    seconds = iteration_seconds(cell.method, layers(cell.model, given["single_gpu_iteration"]), cluster)
    return cell.gpus * given["local_batch"] / seconds


def _planned(cell: Cell, facts: Facts) -> Price:
    """Return the price that MG-WFBP planned with: of its table nearest to the network's named or measured rate."""
    named = re.match(r"([1-9]\d{0,5})(?!\d)", cell.network)
    measured = facts.get(cell.network, {}).get("throughput_1MiB", 1e9)
    gigabits = float(named[1]) if named else measured * 8 / 1e9
    return Price(*PLANNED[min(PLANNED, key=lambda rate: abs(math.log(rate / gigabits)))][cell.gpus])
