"""A model's parameters as the runtime sees them: their names and roles, and which are dense, sparse or frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from laconic.errors import ContractError
from laconic.runtime.sharded.local_shard import LocalShard, is_sharded
from laconic.values.tensor_spec import TensorSpec

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_NORMS = (*_BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_CONVS = (nn.modules.conv._ConvNd,)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Parameters:
    """Trainable parameters by how their gradients are sent, in registration order; tied weights appear once."""

    dense: tuple[nn.Parameter, ...]
    specs: tuple[TensorSpec, ...]
    sparse: tuple[nn.Parameter, ...]
    sparse_names: tuple[str, ...]
    frozen: tuple[tuple[str, nn.Parameter], ...]

    @classmethod
    def of(cls, model: nn.Module, gather_sparse: bool) -> Parameters:
        """Classify a model's parameters; refuse models that cannot be distributed."""
        roles, sparse_ids = _roles(model)
        dense, sparse, frozen, empty = [], [], [], []
        for name, whole in model.named_parameters():
            parameter = LocalShard.of(whole) if is_sharded(whole) else whole
            if not parameter.requires_grad:
                frozen.append((name, parameter))
            elif id(whole) in sparse_ids and gather_sparse:
                sparse.append((name, parameter))
            elif parameter.numel():
                dense.append((name, parameter))
                roles.setdefault(id(parameter), roles.get(id(whole), _shape_role(whole)))
            elif is_sharded(whole):
                empty.append((name, parameter))
                roles.setdefault(id(parameter), roles.get(id(whole), _shape_role(whole)))
        if not dense and not sparse:
            dense = empty[:1]  # others own all of the model: this worker takes part in what they do together
        if not dense and not sparse:
            raise ContractError("this model has no parameter that requires a gradient: there is nothing to distribute")
        for name, parameter in dense:
            if parameter.is_complex():
                raise ContractError(f"{name!r} is complex: register its real view (torch.view_as_real) instead")
        devices = sorted({str(parameter.device) for _, parameter in [*dense, *sparse]})
        if len(devices) > 1:
            raise ContractError(f"one worker drives one device, this model lies on {', '.join(devices)}")
        specs = tuple(TensorSpec(n, tuple(p.shape), p.dtype, roles[id(p)]) for n, p in dense)
        return cls(
            tuple(p for _, p in dense), specs, tuple(p for _, p in sparse), tuple(n for n, _ in sparse), tuple(frozen)
        )

    @cached_property
    def trainable(self) -> tuple[nn.Parameter, ...]:
        """All trainable parameters, dense ones first: the numbering that hooks use."""
        return *self.dense, *self.sparse

    @cached_property
    def _shares(self) -> tuple[tuple[float, str], ...]:
        total = max(sum(p.numel() for p in self.trainable), 1)
        names = (*(spec.name for spec in self.specs), *self.sparse_names)
        return tuple((p.numel() / total, name) for p, name in zip(self.trainable, names, strict=True))

    def share(self, i: int) -> tuple[float, str]:
        """Return the share of all elements that the i-th trainable parameter holds, and its name."""
        return self._shares[i]

    @property
    def device(self) -> torch.device:
        return self.trainable[0].device


def _shape_role(parameter: torch.Tensor) -> str:
    return {0: "scalar", 1: "vector"}.get(parameter.dim(), "matrix")


def _roles(model: nn.Module) -> tuple[dict[int, str], set[int]]:
    """Return each parameter's role in its module, so that a strategy can name norms and embeddings, and which are
    sparse."""
    roles: dict[int, str] = {}
    sparse: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, _EMBEDDINGS):
                roles.setdefault(id(parameter), "embedding")
                if module.sparse:
                    sparse.add(id(parameter))
            elif isinstance(module, _NORMS):
                roles.setdefault(id(parameter), "norm")
            elif isinstance(module, _CONVS) and name == "weight":
                roles.setdefault(id(parameter), "conv")
            elif name == "bias":
                roles.setdefault(id(parameter), "bias")
    return roles, sparse
