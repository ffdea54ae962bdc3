"""What a chain of compressors costs on a model: its payloads, and its encoding and decoding, by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.compression.base import Compressor
from laconic.compression.optional import prices_of, wire_of
from laconic.cost.collectives import Vector
from laconic.cost.plan_arrays import PlanArrays
from laconic.strategy import Sentence
from laconic.values.profile import CodecTimes
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meets


@dataclass(frozen=True)
class CompressionCosts:
    """The costs of a chain of compressors on a model: times by tensor, and payload bytes by tensor.

    `rounds` holds for each round the bytes by the way payloads meet (`reduce`, `gather` …); `dense_bytes` are those of
    tensors that are not compressed. `times` are added for each bucket in which there are others.
    """

    dense_bytes: Vector
    rounds: tuple[dict[Meets, Vector], ...]
    encode_seconds: Vector
    decode_seconds: Vector
    dtype: str
    accepted: Vector  # 1 for tensors that are compressed, 0 for the others
    times: CodecTimes

    def coding(self, plan_arrays: PlanArrays) -> tuple[Vector, Vector]:
        """Return the seconds of encoding and of decoding each message."""
        coded = plan_arrays.summed(self.accepted) > 0
        encode = plan_arrays.summed(self.encode_seconds) + self.times.encode_seconds_per_bucket * coded
        return encode, plan_arrays.summed(self.decode_seconds) + self.times.decode_seconds_per_bucket * coded

    def divided(self, members: int) -> CompressionCosts:
        """Return the costs where each of so many members has an equal share of every tensor."""
        rounds = tuple({meets: nbytes / members for meets, nbytes in of.items()} for of in self.rounds)
        times = (self.encode_seconds / members, self.decode_seconds / members)
        return CompressionCosts(self.dense_bytes / members, rounds, *times, self.dtype, self.accepted, self.times)


def compression_costs(
    sentence: Sentence, tensors: Sequence[TensorSpec], size: int, times: CodecTimes, per_tensor: bool = True
) -> CompressionCosts:
    """Return the costs of a sentence's compressors on these tensors among `size` workers; `times` count once for each
    tensor too, unless whole buckets are encoded."""
    compressor: Compressor = sentence.compressor
    words = sentence.chain
    accepted = [words != "none" and compressor.accepts(spec) for spec in tensors]
    prices = [prices_of(compressor, s, size) if yes else () for s, yes in zip(tensors, accepted, strict=True)]
    rounds: list[dict[Meets, Vector]] = [{} for _ in range(max(map(len, prices), default=0))]
    for i, each in enumerate(prices):
        for place, (meets, nbytes) in enumerate(each):
            rounds[place].setdefault(meets, np.zeros(len(tensors)))[i] = nbytes
    elements = np.array([spec.numel if yes else 0 for spec, yes in zip(tensors, accepted, strict=True)], dtype=float)
    some = np.array(accepted, dtype=float) * per_tensor
    wire_dtype = wire_of(compressor)
    return CompressionCosts(
        np.array([0.0 if yes else spec.nbytes for spec, yes in zip(tensors, accepted, strict=True)]),
        tuple(rounds),
        times.encode_seconds_per_tensor * some + times.encode_seconds_per_element * elements,
        times.decode_seconds_per_tensor * some + times.decode_seconds_per_element * elements,
        "float32" if wire_dtype is None else str(wire_dtype).removeprefix("torch."),
        np.array(accepted, dtype=float),
        times,
    )
