"""Zero-run-length coding: a tensor that is mostly zeros, without loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.claims import Lossless
from laconic.compression.codec import Codec
from laconic.compression.codes import bits, elias, golomb, runs
from laconic.compression.payload import pack
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "zero_run_length",
    aliases=["zrl"],
    paper="Robinson and Cherry, Proc. IEEE 55(3), 1967; as in DGC, ICLR 2018 and 3LC, MLSys 2019",
    claims=[Lossless()],
    formula="C(x) = x, as what is not 0 and the number of zeros before each",
)
@dataclass(frozen=True)
class ZeroRunLength(Codec):
    """Non-zero values and the lengths of the runs of zeros between them, for gradients that are already sparse.

    Runs take 16 bits each (with a filler of value zero for longer ones), or Golomb's or Elias's codes of gaps with
    their number before them. The form for bytes of ternary digits is part of three_lc. Lossless but for the sign of
    zeros; dense tensors grow by half. Reading chosen: the run-length idea, in the forms in which later papers use it.
    """

    ragged: ClassVar[bool] = True
    code: str = knob("runs", choices=("runs", "golomb", "elias"), doc="runs in 16 bits, or gaps in a code of bits")

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        places = torch.nonzero(flat).view(-1)
        if self.code == "runs":
            return pack(*runs.gaps(places, flat[places]))
        count = torch.tensor([len(places)], dtype=torch.int32, device=x.device)
        if self.code == "golomb":
            return pack(count, flat[places], golomb.write(places, flat.numel()))
        return pack(count, flat[places], elias.encode(torch.diff(places, prepend=places.new_full((1,), -1))))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        if self.code == "runs":
            places, values = runs.read(payload)
        else:
            count = int(payload[:4].clone().view(torch.int32))
            written = payload[4 + 4 * count :]
            values = payload[4 : 4 + 4 * count].clone().view(torch.float32)
            if self.code == "golomb":
                places, _ = golomb.read(written, count, shape.numel())
            else:
                places = torch.cumsum(elias.decode(written, count), 0) - 1
        decoded = torch.zeros(shape.numel(), device=payload.device)
        decoded[places] = values
        return decoded.view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes of a tensor without zeros, which takes the most: a gap of none is one bit, and a zero saves
        more than it lengthens one."""
        n = spec.numel
        return runs.EACH * n if self.code == "runs" else 4 + 4 * n + bits.length(n, 1)
