"""Published iterations of large transformers, as small tables: model, layout, and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.parallel.hybrid.runs import Layout, Run
from laconic.parallel.hybrid.transformer import Transformer


@dataclass(frozen=True)
class Published:
    """A run that somebody measured: its name, what it was, and its seconds; `printed` are billions of parameters."""

    name: str
    run: Run
    seconds: float
    printed: float | None = None
    teraflops: float | None = None  # per GPU, as published


# Narayanan et al., SC 2021, Table 1: billions of parameters, heads, hidden size, layers, tensor and pipeline sizes,
# GPUs, batch, achieved TFLOP/s per GPU. Microbatch, chunks and whether gradients were overlapped (PyTorch's DDP) are
# those of the authors' script for the table (NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh).
_SC21 = (
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1, True),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1, True),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1, True),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1, True),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 4, 1, False),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3, False),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2, False),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2, False),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3, False),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 1, False),
)


def sc21() -> tuple[Published, ...]:
    """Return Megatron-LM's ten models on up to 3072 A100; the time is the operations over the published rate."""
    found = []
    for billions, heads, hidden, layers, t, p, gpus, batch, rate, microbatch, chunks, overlapped in _SC21:
        model = Transformer(layers, hidden, heads)
        layout = Layout(p, t, gpus // (p * t), microbatch, chunks, overlapped=overlapped)
        seconds = model.operations(batch) / (gpus * rate * 1e12)
        found.append(Published(f"{billions:g}B", Run(model, batch, layout), seconds, billions, rate))
    return tuple(found)


MT_NLG = Transformer(105, 20480, 128)
MT_NLG_SECONDS = {8: (60.1, 126.0), 10: (50.2, 121.0), 12: (44.4, 113.0)}
"""Seconds of an iteration and TFLOP/s per GPU by replicas of 280 GPUs (Smith et al., arXiv 2201.11990)."""


def mt_nlg_layout(replicas: int, as_deepspeed: bool = True) -> Layout:
    """Return the layout of the 530-billion-parameter model: tensors in a host, 35 stages, and replicas of these.

    DeepSpeed's pipeline differs from Megatron-LM's: bf16 gradients are summed and sent in 32 bits, and its engine sends
    and receives in instructions of their own, one after the other. That its stages send whole activations is our
    reading, made with the three times at hand: the paper does not mention SC 2021's scatter/gather.
    `as_deepspeed=False` is Megatron-LM's way.
    """
    if not as_deepspeed:
        return Layout(35, 8, replicas)
    return Layout(35, 8, replicas, gradient_bytes=4.0, sum_bytes=4.0, split_sends=False, sends_in_turn=True)


def mt_nlg_runs(as_deepspeed: bool = True) -> tuple[Published, ...]:
    """Return the three published iterations, with a batch of 1920 in microbatches of one sample."""
    return tuple(
        Published(
            f"{280 * replicas} GPUs", Run(MT_NLG, 1920, mt_nlg_layout(replicas, as_deepspeed)), seconds, None, rate
        )
        for replicas, (seconds, rate) in MT_NLG_SECONDS.items()
    )
