"""Sparsification in the frequency domain: the largest coefficients of a gradient's Fourier transform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.codec import Codec
from laconic.compression.codes import bits, range_float
from laconic.compression.payload import pack, unpack
from laconic.compression.selector import share_of
from laconic.compression.topk import largest
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "fft_sparse",
    aliases=["fft"],
    paper="Wang et al., HPDC 2020",
    formula="C(x) = IFFT(k largest |X| of X = FFT(x), their parts in floats of a few bits)",
)
@dataclass(frozen=True)
class FFTSparse(Codec):
    """The Fourier coefficients of largest magnitude, marked in a bitmap, in floats of a few bits.

    What is dropped is spread over all coordinates, so that the result is dense and close to the gradient's own
    distribution. Reading chosen: the range of the floats is that of the tensor, with as much mantissa as fits. The
    paper lets the share of what is dropped fall in training, and has no memory; `ef` may be added. A tensor that
    contains a value that is not finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "transform"
    ratio: float = knob(
        0.15, above=0, high=1, gentler="more", doc="share of the coefficients that are sent, at least one"
    )
    bits: int = knob(10, low=4, high=32, gentler="more", doc="bits of a real or an imaginary part")

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        spectrum = torch.fft.rfft(x.reshape(-1))
        kept = largest(spectrum.abs(), share_of(self.ratio, len(spectrum)))
        marked = torch.zeros(len(spectrum), dtype=torch.uint8, device=x.device)
        marked[kept] = 1
        parts = torch.view_as_real(spectrum[kept]).reshape(-1)
        header, codes = range_float.encode(parts, self.bits)
        return pack(header, bits.pack(marked, 1), codes)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        coefficients = shape.numel() // 2 + 1
        k = share_of(self.ratio, coefficients)
        header, marked, codes = unpack(
            payload, (torch.float32, 3), (torch.uint8, bits.length(coefficients, 1)), (torch.uint8, -1)
        )
        spectrum = torch.zeros(coefficients, 2, device=payload.device)
        kept = torch.nonzero(bits.unpack(marked, 1, coefficients)).view(-1)
        spectrum[kept] = range_float.decode(header, codes, self.bits, 2 * k).view(-1, 2)
        decoded: Tensor = torch.fft.irfft(torch.view_as_complex(spectrum), n=shape.numel())
        return decoded.view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        coefficients = spec.numel // 2 + 1
        k = share_of(self.ratio, coefficients)
        return range_float.HEADER + bits.length(coefficients, 1) + bits.length(2 * k, self.bits)
