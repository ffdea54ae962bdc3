"""Language models, with the tensor names of `transformers`; attention is fused, so its scores are never stored."""

from __future__ import annotations

from laconic.profile.zoo.layers import Model, Tensor, dense, normed


def bert(hidden: int, layers: int, sequence: int = 64, vocabulary: int = 30528, positions: int = 512) -> Model:
    """Return BERT with both heads of pre-training; the vocabulary is padded to a multiple of 8.

    The output matrix is the word embedding: it is listed once, as the first tensor, whose gradient is complete when
    backward ends; its multiplications are counted with the output's bias.
    """
    counts = {"word": vocabulary, "position": positions, "token_type": 2}
    found = _embeddings("bert.embeddings.{}_embeddings", hidden, sequence, **counts)
    found += normed("bert.embeddings.LayerNorm", hidden, sequence)
    for layer in range(layers):
        found += _encoder(f"bert.encoder.layer.{layer}", hidden, sequence)
    found += dense("bert.pooler.dense", hidden, hidden)
    found += dense("cls.predictions.transform.dense", hidden, hidden, sequence, after=2)
    found += normed("cls.predictions.transform.LayerNorm", hidden, sequence)
    found += [_scores(Tensor("cls.predictions.bias", (vocabulary,), 0.0), hidden, vocabulary, sequence)]
    return found + dense("cls.seq_relationship", hidden, 2)


def gpt2(hidden: int, layers: int, sequence: int = 1024, vocabulary: int = 50257, positions: int = 1024) -> Model:
    """Return GPT-2, whose output matrix is the word embedding; its multiplications count with the last normalization.

    Matrices are (outputs, inputs), where `transformers` has them the other way round.
    """
    found = _embeddings("transformer.{}", hidden, sequence, wte=vocabulary, wpe=positions)
    for layer in range(layers):
        name = f"transformer.h.{layer}"
        inner = dense(f"{name}.attn.c_attn", hidden, 3 * hidden, sequence)
        found += normed(f"{name}.ln_1", hidden, sequence)
        found += [_attending(inner[0], hidden, sequence), inner[1]]
        found += dense(f"{name}.attn.c_proj", hidden, hidden, sequence, after=5)
        found += normed(f"{name}.ln_2", hidden, sequence)
        found += dense(f"{name}.mlp.c_fc", hidden, 4 * hidden, sequence, after=2)
        found += dense(f"{name}.mlp.c_proj", 4 * hidden, hidden, sequence, after=5)
    last = normed("transformer.ln_f", hidden, sequence)
    return [*found, last[0], _scores(last[1], hidden, vocabulary, sequence)]


def llama(
    hidden: int, inner: int, layers: int, heads: int, groups: int, sequence: int = 4096, vocabulary: int = 32000
) -> Model:
    """Return Llama 2 or 3: `groups` of query heads share a head of keys and values; no biases, own output matrix.

    Rotary positions are two passes over queries and keys; the third matrix of the dense layers is multiplied in.
    """
    shared = hidden // heads * groups
    found = _embeddings("model.{}", hidden, sequence, embed_tokens=vocabulary)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        own = f"{name}.self_attn"
        found += normed(f"{name}.input_layernorm", hidden, sequence, bias=False)
        found += dense(f"{own}.q_proj", hidden, hidden, sequence, after=2, bias=False)
        found += dense(f"{own}.k_proj", hidden, shared, sequence, after=2, bias=False)
        values = dense(f"{own}.v_proj", hidden, shared, sequence, bias=False)
        found += [_attending(values[0], hidden, sequence)]
        found += dense(f"{own}.o_proj", hidden, hidden, sequence, after=3, bias=False)
        found += normed(f"{name}.post_attention_layernorm", hidden, sequence, bias=False)
        found += dense(f"{name}.mlp.gate_proj", hidden, inner, sequence, after=2, bias=False)
        found += dense(f"{name}.mlp.up_proj", hidden, inner, sequence, after=3, bias=False)
        found += dense(f"{name}.mlp.down_proj", inner, hidden, sequence, after=3, bias=False)
    found += normed("model.norm", hidden, sequence, bias=False)
    return [*found, _scores(Tensor("lm_head.weight", (vocabulary, hidden), 0.0), hidden, vocabulary, sequence)]


def _embeddings(names: str, hidden: int, sequence: int, **counts: int) -> Model:
    """Return embedding tables, of which each token reads a row."""
    size = hidden * sequence
    return [
        Tensor(f"{names.format(name)}.weight", (n, hidden), size, 2 * size, 0.0, size) for name, n in counts.items()
    ]


def _attending(tensor: Tensor, hidden: int, sequence: int) -> Tensor:
    """Add the two products of attention to the matrix that makes the values: four values are read, one is written."""
    return tensor._replace(
        operations=tensor.operations + 2 * sequence * sequence * hidden,
        after=tensor.after + 4 * hidden * sequence,
        kept=tensor.kept + hidden * sequence,
    )


def _scores(tensor: Tensor, hidden: int, vocabulary: int, sequence: int) -> Tensor:
    """Add the output scores, one for each word at each position, and the loss over them, which is no product.

    Four copies are alive at the end of the forward pass: scores, the same in 32 bits, their logarithms, a gradient.
    """
    return tensor._replace(
        operations=hidden * vocabulary * sequence,
        moved=float((hidden + vocabulary) * sequence),
        after=6.0 * vocabulary * sequence,
        kept=4.0 * vocabulary * sequence,
        kind="matrix",
    )


def _encoder(name: str, hidden: int, sequence: int) -> Model:
    """Return an encoder layer: attention and the two dense layers after it."""
    own = f"{name}.attention.self"
    query, key, value = (dense(f"{own}.{part}", hidden, hidden, sequence) for part in ("query", "key", "value"))
    return [
        *query,
        *key,
        _attending(value[0], hidden, sequence),
        value[1],
        *dense(f"{name}.attention.output.dense", hidden, hidden, sequence, after=5),
        *normed(f"{name}.attention.output.LayerNorm", hidden, sequence),
        *dense(f"{name}.intermediate.dense", hidden, 4 * hidden, sequence, after=2),
        *dense(f"{name}.output.dense", 4 * hidden, hidden, sequence, after=5),
        *normed(f"{name}.output.LayerNorm", hidden, sequence),
    ]
