"""Measured training steps with which the estimates are compared: our own on one GPU, published ones on others.

Published measurements are read from a folder (`LACONIC_DATA`); figures of NVIDIA's and of Lambda's are cited here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from laconic.profile.gpus.roofline import SHARES, Shares, forward_seconds, step_seconds
from laconic.profile.gpus.table import GPUS, Gpu, Precision
from laconic.profile.zoo import Tensor, bert, gpt2, llama, model
from laconic.reading import Natural, Positive, Source

# One H200, torch 2.11, models of torchvision and transformers 5.17 in eager mode, `autocast` for bf16, scaled dot
# product attention, synthetic data: samples, optimizer, milliseconds of a whole step in fp32, tf32 and bf16 (the median
# of five after three), and the most memory ever allocated in GB in fp32 and bf16.
H200 = (
    ("ResNet-50", 64, "sgd", 76.8, 32.3, 29.0, 5.86, 3.22),
    ("ResNet-50", 256, "sgd", 280.5, 116.0, 104.9, 22.96, 11.81),
    ("VGG-16", 64, "sgd", 112.8, 47.3, 30.6, 8.26, 4.68),
    ("VGG-16", 128, "sgd", 216.8, 91.0, 56.1, 14.14, 7.46),
    ("BERT-Base", 64, "adam", 70.6, 24.4, 25.9, 5.5, 4.55),
    ("BERT-Base", 256, "adam", 243.9, 71.4, 46.9, 17.65, 13.19),
    ("BERT-Large", 8, "adam", 43.7, 36.1, 51.4, 6.8, 6.8),
    ("BERT-Large", 64, "adam", 190.5, 64.6, 55.3, 12.35, 10.33),
    ("BERT-Large, 512 tokens", 8, "adam", 212.8, 78.2, 64.6, 12.35, 10.33),
    ("BERT-Large, 512 tokens", 16, "adam", 408.1, 141.2, 72.5, 20.59, 15.87),
    ("GPT-2", 8, "adam", 178.4, 85.0, 61.2, 15.78, 13.61),
    ("GPT-2", 16, "adam", 338.6, 155.0, 111.8, 30.01, 25.39),
    ("GPT-2-Medium", 8, "adam", 470.7, 195.9, 131.0, 33.92, 28.17),
    ("GPT-2-Large", 8, "adam", 1026.2, 375.6, 235.2, 60.55, 50.0),
    ("GPT-2-XL", 4, "adam", 1043.9, 364.0, 232.4, 60.24, 52.97),
    ("Llama-2-7B, 8 layers, 2048 tokens", 2, "adam", 967.3, 270.0, None, 37.69, None),
    ("Llama-2-7B, 8 layers, 2048 tokens", 4, "adam", 1875.8, 499.1, None, 48.48, None),
)

# Samples per second of ResNet-50 v1.5 on one GPU in NVIDIA's DeepLearningExamples (container 21.03): GPU, precision,
# batch, images per second.
NVIDIA: tuple[tuple[str, Precision, int, float], ...] = (
    ("A100 80GB", "tf32", 256, 938.0),
    ("A100 80GB", "fp16", 256, 2470.0),
    ("V100", "fp32", 128, 367.0),
    ("V100", "fp16", 256, 1200.0),
)


# Samples per second on one GPU of NVIDIA's examples in Lambda's benchmark (lambdal/deeplearning-benchmark on GitHub,
# revision 0551cb7, batches of 08d77c4): ResNet-50, BERT-Base and BERT-Large on 384 tokens, with the batch of each; in
# 32 bits, which is tf32 where there is such a unit, and in fp16. Nothing was fitted to them.
LAMBDA: dict[str, tuple[tuple[tuple[float, int], ...], tuple[tuple[float, int], ...]]] = {
    "V100": (((369, 128), (42, 24), (12, 8)), ((833, 256), (189, 48), (57, 16))),
    "Quadro RTX 8000": (((274, 496), (41, 96), (12, 32)), ((651, 928), (146, 192), (50, 64))),
    "RTX 3090": (((513, 224), (85, 48), (24, 16)), ((905, 448), (172, 96), (52, 28))),
    "RTX 4090": (((721, 224), (137, 48), (44, 16)), ((1301, 448), (297, 96), (93, 28))),
    "A6000": (((514, 496), (101, 96), (33, 32)), ((916, 928), (198, 192), (68, 64))),
    "RTX 6000 Ada": (((647, 496), (136, 96), (44, 32)), ((1146, 928), (255, 192), (79, 64))),
    "A100 40GB PCIe": (((882, 360), (179, 80), (53, 28)), ((1396, 720), (368, 160), (117, 48))),
    "A100 80GB PCIe": (((1014, 640), (224, 172), (70, 64)), ((1527, 1280), (415, 320), (140, 112))),
    "A100 80GB": (((1066, 640), (239, 172), (75, 64)), ((1582, 1280), (443, 320), (152, 112))),
    "H100 PCIe": (((1197, 640), (292, 172), (97, 64)), ((1866, 1280), (567, 320), (203, 112))),
}


@dataclass(frozen=True)
class Case:
    """One measured training step; gradients of `passes` batches are accumulated before the optimizer's step."""

    source: str
    model: str
    tensors: tuple[Tensor, ...]
    gpu: Gpu
    batch: int
    precision: Precision
    optimizer: str
    seconds: float
    passes: int = 1

    def predicted_seconds(self, shares: Shares = SHARES) -> float:
        """Return the seconds of this step that the roofline estimates."""
        forward = float(forward_seconds(self.tensors, self.gpu, self.batch, self.precision, shares).sum())
        return 3 * self.passes * forward + step_seconds(self.tensors, self.gpu, self.optimizer)

    def error(self, shares: Shares = SHARES) -> float:
        """Return the error of the prediction as a share of the measured time."""
        return self.predicted_seconds(shares) / self.seconds - 1


@cache
def definition(name: str) -> tuple[Tensor, ...]:
    """Return a model's tensors; with another number of tokens or layers where the name says so."""
    if name == "BERT-Large, 512 tokens":
        return tuple(bert(1024, 24, 512))
    if name == "Llama-2-7B, 8 layers, 2048 tokens":
        return tuple(llama(4096, 11008, 8, 32, 32, 2048))
    return model(name)


def own() -> Iterator[Case]:
    """Yield our own measurements on an H200."""
    precisions: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
    for name, batch, optimizer, *milliseconds, _, _ in H200:
        for precision, duration in zip(precisions, milliseconds, strict=True):
            if duration is not None:
                tensors = definition(name)
                yield Case("H200, ours", name, tensors, GPUS["H200"], batch, precision, optimizer, duration * 1e-3)


def cited() -> Iterator[Case]:
    """Yield the measurements that NVIDIA publishes."""
    for name, precision, batch, rate in NVIDIA:
        tensors = definition("ResNet-50")
        source = f"{name.split()[0]}, NVIDIA"
        yield Case(source, "ResNet-50", tensors, GPUS[name], batch, precision, "sgd", batch / rate)


def published(folder: Path) -> Iterator[Case]:
    """Yield the measurements in a folder of published ones."""
    yield from _survey(folder / "ddl-benchmarks" / "inputs.csv")
    yield from _pollux(folder / "pollux" / "traces")
    yield from _vtrain(folder / "vtrain" / "single_sample.csv")


def unfitted() -> Iterator[Case]:
    """Yield the cited cases that the shares were not fitted to: Lambda's, on ten GPUs."""
    models = (
        ("ResNet-50", definition("ResNet-50"), "sgd"),
        ("BERT-Base, 384 tokens", _answering(768, 12), "adam"),
        ("BERT-Large, 384 tokens", _answering(1024, 24), "adam"),
    )
    for name, measured in LAMBDA.items():
        chip = GPUS[name]
        full: Precision = "fp32" if chip.tf32 is None else "tf32"
        for precision, rows in zip((full, "fp16"), measured, strict=True):
            for (model_, tensors, optimizer), (rate, batch) in zip(models, rows, strict=True):
                yield Case("Lambda", model_, tensors, chip, batch, precision, optimizer, batch / rate)


def held_out(folder: Path) -> Iterator[Case]:
    """Yield published cases that the shares were not fitted to: ResNet-50 on a P100 and a V100 (Narayanan et al., OSDI
    2020)."""
    source = _source(folder / "gavel" / "simulation_throughputs.json")
    table = source.value(source.json(source.text()), dict[str, dict[str, dict[str, Any]]])
    for name in ("P100", "V100"):
        for batch in (16, 32, 64, 128):
            job = f"('ResNet-50 (batch size {batch})', 1)"
            rate = source.value(table.get(name.lower(), {}).get(job, {}).get("null"), Positive)
            tensors = definition("ResNet-50")
            yield Case(f"{name}, Gavel", "ResNet-50", tensors, GPUS[name], batch, "fp32", "sgd", 1 / rate)


@dataclass(frozen=True)
class _Fact:
    name: str
    field: str
    value: Positive


@dataclass(frozen=True)
class _Placement:
    placement: Natural
    local_bsz: Natural
    step_time: Positive


@dataclass(frozen=True)
class _Iteration:
    """A row of vTrain's, whose columns have names for people."""

    tensor: Natural
    pipeline: Natural
    data: Natural
    hidden: Annotated[int, Meta(ge=1, le=2**20)]
    layers: Annotated[int, Meta(ge=1, le=2**12)]
    micro: Natural
    batch: Natural
    milliseconds: Positive


_VTRAIN = {
    "tensor parallelism": "tensor",
    "pipeline parallelism": "pipeline",
    "data parallelism": "data",
    "hidden size": "hidden",
    "# layers": "layers",
    "micro batch": "micro",
    "global batch": "batch",
    "iteration time (ms)": "milliseconds",
}


def _survey(path: Path) -> Iterator[Case]:
    """Yield three models on an RTX 2080 Ti (Shi et al., arXiv 2005.13247)."""
    source = _source(path)
    facts = {(row.name, row.field): row.value for row in source.rows(source.text(), _Fact)}
    for name, optimizer in (("ResNet-50", "sgd"), ("BERT-Base", "adam"), ("BERT-Large", "adam")):
        found = [facts.get((name, field)) for field in ("local_batch", "single_gpu_iteration")]
        batch, milliseconds = source.value(found, tuple[Natural, Positive], lax=True)
        tensors, chip = definition(name), GPUS["RTX 2080 Ti"]
        yield Case("RTX 2080 Ti, survey", name, tensors, chip, batch, "fp32", optimizer, milliseconds * 1e-3)


def _pollux(folder: Path) -> Iterator[Case]:
    """Yield steps on one T4 of the Pollux artifact (Qiao et al., OSDI 2021): ResNet-50, and BERT-Base on 384 tokens.

    That length is the usual one for its task, answering questions; the artifact does not say it.
    """
    for job, name, tensors, optimizer in (
        ("imagenet", "ResNet-50", definition("ResNet-50"), "sgd"),
        ("bert", "BERT-Base, 384 tokens", _answering(768, 12), "adam"),
    ):
        source = _source(folder / job / "placements.csv")
        for row in source.rows(source.text(), _Placement):
            if row.placement == 1:
                yield Case("T4, Pollux", name, tensors, GPUS["T4"], row.local_bsz, "fp32", optimizer, row.step_time)


@cache
def _answering(hidden: int, layers: int) -> tuple[Tensor, ...]:
    """Return BERT for answering questions on 384 tokens, without the heads of pre-training."""
    return tuple(tensor for tensor in bert(hidden, layers, 384) if not tensor.name.startswith("cls."))


def _vtrain(path: Path) -> Iterator[Case]:
    """Yield GPTs on A100s of one host (Bang et al., MICRO 2024), without tensor or pipeline parallelism."""
    source = _source(path)
    names, _, body = source.text().partition("\n")
    renamed = ",".join(_VTRAIN.get(name.strip(), "") for name in names.split(","))
    for row in source.rows(f"{renamed}\n{body}", _Iteration):
        if row.tensor == row.pipeline == 1:
            passes = row.batch // row.data // row.micro
            tensors, seconds = _megatron(row.hidden, row.layers), row.milliseconds * 1e-3
            name = f"GPT of {row.layers} layers of {row.hidden}"
            yield Case("A100, vTrain", name, tensors, GPUS["A100 40GB"], row.micro, "fp16", "adam", seconds, passes)


@cache
def _megatron(hidden: int, layers: int) -> tuple[Tensor, ...]:
    """Return GPT-2 with Megatron's padded vocabulary."""
    return tuple(gpt2(hidden, layers, 1024, 51200))


def _source(path: Path) -> Source:
    instead = "set LACONIC_DATA to the folder with the published measurements (`laconic data` says where they are from)"
    return Source(path, "table of measured steps", instead)
