"""Megatron-LM's rules for combining pipeline, tensor and data parallelism (PTD-P)."""

from __future__ import annotations

from laconic.errors import LaconicError
from laconic.parallel.hybrid.cluster import Cluster
from laconic.parallel.hybrid.memory import RESERVED_SHARE, largest_bytes
from laconic.parallel.hybrid.runs import Layout, Run, Runs
from laconic.parallel.hybrid.search import divisors
from laconic.parallel.hybrid.transformer import Transformer
from laconic.registry import technique


@technique(
    "megatron_3d",
    axis="parallel",
    paper="Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021",
    evidence="published",
    reproduces="throughput of every second of the ten models (Table 1) from the others, within 10 %",
    holds="the ten printed numbers of parameters",
    why_no_word="It lays a model out on a grid of GPUs; a sentence says how the data-parallel ranks of that grid talk.",
)
def megatron_3d(model: Transformer, gpus: int, batch: int, cluster: Cluster, microbatch: int = 1) -> Layout:
    """Lay a transformer out by Megatron-LM's rules: tensors within a host, then stages until it fits, then data.

    A tensor is divided among as many GPUs of a host as its heads allow, but among no more than the model needs to fit;
    then the layers among as few stages as make it fit; the rest of the GPUs are replicas. Every layer is recomputed.
    """
    within = [size for size in divisors(model.heads) if size <= cluster.per_host and gpus % size == 0]
    limit = (1 - RESERVED_SHARE) * cluster.memory_bytes
    grids = [(1, tensor) for tensor in within] + [(stages, within[-1]) for stages in divisors(model.layers)[1:]]
    for stages, tensor in grids:
        data = gpus // (stages * tensor)
        if gpus % (stages * tensor) or batch % (data * microbatch):
            continue
        layout = Layout(stages, tensor, data, microbatch)
        if float(largest_bytes(Runs.of([Run(model, batch, layout)]))[0]) <= limit:
            return layout
    raise LaconicError(
        f"no layout of {gpus} GPUs holds this model of {model.parameters / 1e9:.1f} billion parameters in microbatches "
        f"of {microbatch}: take more GPUs, or a batch that {gpus} divides"
    )


def pipeline_seconds(microbatches: int, stages: int, seconds: float, chunks: int = 1) -> float:
    """Return (m + (p-1)/v)(tf + tb): what equal stages take, each `seconds` for a microbatch there and back."""
    return (microbatches + (stages - 1) / chunks) * seconds


def training_days(tokens: float, parameters: float, gpus: int, operations_per_second: float) -> float:
    """Return 8 T P/(n X) in days: a training with recomputation, X being what each GPU achieves."""
    return 8 * tokens * parameters / (gpus * operations_per_second) / 86400
