"""Megatron's tensor parallelism: pairs of matrices cut by columns, then by rows, with one sum for each pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from laconic.errors import LaconicError
from laconic.registry import technique

Cut = Literal["columns", "rows", "shared", "vocabulary", "logits"]


@technique(
    "tensor_parallel",
    axis="parallel",
    paper="Shoeybi et al., arXiv 1909.08053, 2019",
    why_no_word="It cuts a model's matrices before training; write `shard_tensors(model, mesh, cuts)`.",
)
def shard_tensors(model: nn.Module, mesh: DeviceMesh, cuts: Mapping[str, Cut], source: int | None = 0) -> nn.Module:
    """Cut the matrices of a model's layers among the devices of a mesh with one dimension, and return the model.

    A matrix that is cut by columns takes inputs that all devices have and yields each device its part of the outputs;
    the one behind it, cut by rows, takes such parts and sums: with an elementwise function between them, or attention
    whose heads the cut does not divide, a pair costs one all-reduce forward and one backward. Layers that are not named
    stay whole on every device, and so must be what they are given.

    - `mesh`: the devices, such as `init_device_mesh("cpu", (4,))` or a mesh's dimension `mesh["tp"]`.
    - `cuts`: by names of layers, in which * stands for any one part (`layers.*.up`): "columns" and "rows" for linear
      layers, "shared" for a module whose input several matrices take that are cut by columns, as in attention, so that
      its gradient is summed once; "vocabulary" for an embedding, "logits" for the last matrix, whose outputs stay cut
      for `parallel_cross_entropy`.
    - `source`: the device whose values all get their parts of; None: each keeps its part of its own, which are the same
      on all devices already, and nothing is sent. Virtual workers need None.
    """
    styles: dict[Cut, ParallelStyle] = {
        "columns": ColwiseParallel(),
        "rows": RowwiseParallel(),
        "shared": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
        "vocabulary": RowwiseParallel(input_layouts=Replicate()),
        "logits": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    unknown = sorted(set(cuts.values()) - set(styles))
    if unknown:
        raise LaconicError(f"{unknown[0]!r} is no way to cut a matrix; write {', '.join(styles)}")
    size = mesh.size()
    plan: dict[str, ParallelStyle] = {}
    for name, cut in cuts.items():
        found = [(path, module) for path, module in model.named_modules() if _matches(path, name)]
        if not found:
            raise LaconicError(f"the model has no layer that is called {name!r}")
        plan |= {path: styles[cut] for path, _ in found}
        for path, module in found if cut != "shared" else ():
            weight = getattr(module, "weight", None)
            if not isinstance(module, nn.Linear | nn.Embedding) or not isinstance(weight, Tensor):
                raise LaconicError(f"{path} is a {type(module).__name__}; linear layers and embeddings can be cut")
            if weight.shape[cut == "rows"] % size:
                raise LaconicError(
                    f"{path} has {weight.shape[cut == 'rows']} {'inputs' if cut == 'rows' else 'outputs'}, which "
                    f"{size} devices do not divide"
                )
    return parallelize_module(model, mesh, plan, src_data_rank=source)


def _matches(path: str, name: str) -> bool:
    parts, wanted = path.split("."), name.split(".")
    return len(parts) == len(wanted) and all(w in ("*", p) for p, w in zip(parts, wanted, strict=True))


def parallel_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits whose vocabulary is cut, without gathering them: two small all-reduces,
    of the largest logit and of the sum of exponentials. The backward pass has to run inside torch's `loss_parallel()`,
    as `backward_parallel` does it."""
    if not isinstance(logits, DTensor):
        raise LaconicError('the logits are whole; cut their matrix by "logits", or use torch\'s own cross-entropy')
    with loss_parallel():
        return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def backward_parallel(loss: Tensor) -> None:
    """Pass a loss of `parallel_cross_entropy` backward."""
    with loss_parallel():
        loss.backward()


def all_reduce_elements(batch: int, sequence: int, hidden: int, size: int, layers: int = 1) -> float:
    """Return how many elements a device sends for a microbatch: four all-reduces a layer, two of them forward, each of
    batch x sequence x hidden elements in a ring."""
    return layers * 4 * 2 * (size - 1) / size * batch * sequence * hidden


def local(parameter: Tensor) -> Tensor:
    """Return this device's part of a parameter or gradient, or all of it where it is whole."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def whole(parameter: Tensor) -> Tensor:
    """Return a parameter or gradient with the parts of all devices; all of them call this."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else torch.as_tensor(parameter)
