"""Layouts of a large transformer on a cluster: `laconic plan --parallel`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from laconic.parallel.hybrid.cluster import Cluster, Constants
from laconic.parallel.hybrid.memory import RESERVED_SHARE, by_stage
from laconic.parallel.hybrid.runs import RECOMPUTE, Run
from laconic.parallel.hybrid.search import EXACT, Across, Choice, search
from laconic.parallel.hybrid.transformer import Transformer, transformer
from laconic.planner.networks import links_of
from laconic.planner.values import PlanError
from laconic.profile.gpus import GPUS, gpu
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec

_USUAL_GPU = "A100 80GB"
_TYPICAL = TensorSpec("layer", (4096, 4096), torch.bfloat16)


@dataclass(frozen=True)
class Stages:
    """Bytes on a GPU of one stage, by part."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    total: float


@dataclass(frozen=True)
class LayoutAdvice:
    """The fastest layouts that fit, and the memory of the best one's stages.

    - `limit_bytes`: of a GPU's memory, what is left for a model.
    - `least_bytes`: what the model needs on its fullest GPU, in whichever layout needs least.
    - `utilisation`: of the GPUs' peak by the best one; operations that are computed again do not count.
    """

    subject: str
    model: Transformer
    gpus: int
    gpu: str
    batch: int
    priced: int
    fitting: int
    limit_bytes: float
    least_bytes: float
    choices: tuple[Choice, ...]
    stages: tuple[Stages, ...]
    notes: tuple[str, ...]

    @property
    def utilisation(self) -> float:
        useful = 0.75 * self.model.operations(self.batch)  # which counts a second forward pass
        return useful / (self.choices[0].seconds * self.gpus * GPUS[self.gpu].half)

    def to_json(self) -> str:
        """Return everything that is known, as JSON."""
        values = asdict(self) | {"parameters": self.model.parameters}
        if self.choices:
            values["utilisation"] = self.utilisation
        for choice in values["choices"]:
            choice["layout"]["recompute"] = RECOMPUTE[choice["layout"]["recompute"]]
        return json.dumps(values, indent=2) + "\n"


def plan_layouts(
    subject: str,
    *,
    gpus: int,
    network: str,
    gpus_per_host: int | None = None,
    gpu_name: str | None = None,
    latency: str | None = None,
    batch: int | None = None,
    memory_bytes: float | None = None,
    strategies: Sequence[str] = (),
    top: int = 12,
) -> LayoutAdvice:
    """Search all layouts of a transformer, by its name, on so many GPUs.

    - `network`: among hosts, as a rate of each host or a file; the GPUs of a host share it.
    - `gpus_per_host`: default: as many as a host of the GPU is usually sold with.
    - `gpu_name`: the GPU, as `"h100"`; default: an A100 of 80 GB.
    - `batch`: samples of an iteration over all GPUs; default: what the model's authors trained it with.
    - `memory_bytes`: of each GPU; default: that of the named one.
    - `strategies`: sentences to try across data-parallel ranks, beside the plain one.
    """
    model, usual = transformer(subject)
    chip = GPUS[_USUAL_GPU] if gpu_name is None else gpu(gpu_name)
    links = links_of(network, gpus, chip, latency, gpus_per_host)
    levels = links.network.levels
    hosts = levels[1].workers if len(levels) > 1 else min(gpus, gpus_per_host or chip.per_machine)
    between = levels[-1].bits_per_second / 8 / (hosts if len(levels) > 1 else 1)
    inside = levels[0].bits_per_second / 8
    cluster = replace(Cluster.of(chip, between, hosts), link_bytes_per_second=inside)
    constants = Constants(link_share=1.0, network_share=1.0)  # the network tells what collectives get
    batch, limit = batch or usual, memory_bytes or chip.memory_bytes
    ways = EXACT if not strategies else dict(EXACT) | {text: across(text) for text in strategies}
    found = search(model, gpus, batch, cluster, constants, strategies=ways, memory_bytes=limit, top=top)
    stages = _stages(Run(model, batch, found.choices[0].layout)) if found.choices else ()
    notes = (
        *links.notes,
        "times of the model of `laconic validate --section large`, which was held against A100s only",
        "the time that compressing takes is not counted" if strategies else "every layout has the same mathematics",
    )
    return LayoutAdvice(
        subject,
        model,
        gpus,
        chip.name,
        batch,
        found.priced,
        found.fitting,
        (1 - RESERVED_SHARE) * limit,
        found.least_bytes,
        found.choices,
        stages,
        notes,
    )


def across(text: str) -> Across:
    """Return what a sentence sends across data-parallel ranks for each parameter and step."""
    sentence = Strategy.parse(text)
    if not isinstance(sentence, Sentence):
        raise PlanError(f"`{text}` is more than one sentence: --parallel takes one for the data-parallel ranks")
    cadence, compressor = sentence.sync.make().cadence, sentence.compressor
    if cadence is None or cadence.is_asynchronous or sentence.architecture != Sentence().architecture:
        raise PlanError(f"`{text}` is no exchange among equal ranks at fixed steps: --parallel prices only such")
    if compressor.meets not in ("reduce", "gather"):
        raise PlanError(f"payloads of `{text}` meet by {compressor.meets}: --parallel prices sums and gathers only")
    taken = compressor.accepts(_TYPICAL)
    payload = compressor.payload_bytes(_TYPICAL, 8) if taken else _TYPICAL.nbytes
    return Across(payload / _TYPICAL.numel / cadence.period, taken and compressor.meets == "gather")


def _stages(run: Run) -> tuple[Stages, ...]:
    names = ("weights", "gradients", "optimizer", "activations", "total")
    return tuple(Stages(*(float(getattr(one, name)[0]) for name in names)) for one in by_stage(run))
