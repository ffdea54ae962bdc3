"""The kind of a model, by its layers: what a strategy does to the loss is known for models of the same kind alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from laconic.values.tensor_spec import TensorSpec

Kind = Literal["transformer", "convolutional", "recommender", "classifier", "other"]
"""`classifier` is a net of dense layers alone; `other` is whatever cannot be told, of which nothing is known."""

_ATTENTION = re.compile(r"attn|attention|qkv|\b[qkv]_proj\b|\b(query|key|value)\b|\bw[qkv]\b", re.IGNORECASE)
_EMBEDDING = re.compile(r"emb|\bwte\b|table", re.IGNORECASE)
_RECURRENT = re.compile(r"weight_[ih]h", re.IGNORECASE)


def model_kind(tensors: Sequence[TensorSpec], sparse: Sequence[str] = ()) -> Kind:
    """Return the kind of a model from the names, shapes and roles of its tensors.

    `sparse` are names of embeddings with sparse gradients, which are no dense tensors. Attention makes a transformer,
    whatever else there is; a kernel makes a convolutional net; embeddings that hold most of the parameters make a
    recommender. Names without a module, as traces have them, tell nothing.
    """
    names = [spec.name for spec in tensors]
    if any(map(_ATTENTION.search, names)):
        return "transformer"
    if any(spec.role == "conv" or len(spec.shape) > 2 for spec in tensors):
        return "convolutional"
    tables = sum(spec.numel for spec in tensors if spec.role == "embedding" or _EMBEDDING.search(spec.name))
    if sparse or 2 * tables > sum(spec.numel for spec in tensors):
        return "recommender"
    named = all(re.search(r"(^|\.)(weight|bias)$", name) for name in names)
    return "classifier" if named and not tables and not any(map(_RECURRENT.search, names)) else "other"
