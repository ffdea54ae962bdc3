"""What a rule is told of the sentence it stands in: the model's tensors, and how they are encoded."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.architecture.server.point_to_point import compressor_for
from laconic.compression.base import Compressor
from laconic.federated.layout import Layout


@dataclass(frozen=True)
class Setting:
    """The setting of a run.

    - `layout`: the model's tensors.
    - `up`, `down`: the compressors of what clients send and of what they are sent.
    """

    layout: Layout
    up: Compressor
    down: Compressor

    def nbytes(self, compressor: Compressor) -> int:
        """Return the bytes of a vector of the model's length as a compressor encodes it; the largest possible number,
        where that depends on the values."""
        return sum(compressor_for(compressor, spec).payload_bytes(spec, 1) for spec in self.layout.specs)
