"""DeepReduce: the places and the values of any selector, each in a code of its own."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from laconic.compression.base import Compressor
from laconic.compression.codec import Codec
from laconic.compression.codes import bits, bloom, curve, run_lengths
from laconic.compression.codes import places as place_codes
from laconic.compression.payload import pack
from laconic.compression.selector import PlaceSelector, Selected
from laconic.compression.wrapper import Wrapping
from laconic.kernels import draws
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_LOSSLESS = (*place_codes.PLACES, "runs")
_IN_ANY_ORDER = ("packed", "plain")  # codes whose places may lie in the order of values
_FEW = 64  # values that are not worth a curve


@technique(
    "deepreduce",
    paper="Xu et al., NeurIPS 2021",
    formula="places in a lossless code or a Bloom filter of m = -r·ln f/(ln 2)² bits, values in float32 or as a curve",
)
@dataclass(frozen=True)
class DeepReduce(Wrapping):
    """Encode the places and the values of the selector before it: `topk(0.01)+deepreduce(bloom)+ef`.

    Places: in 32 bits, in log2 n bits, as a bitmap, as coded gaps, as runs, the shortest of these (`auto`), or as a
    Bloom filter, which some f of all other places pass too. What is done with those is the policy: `p0` sends the value
    of every place that passes; `p1` lets a common draw pick as many as were selected; `p2` first picks those that share
    a bit of the filter with the fewest others, which are surely or likely selected ones. Values are those of the
    tensor, so that nothing is wrong with the others, and lie in the order of places. Readings chosen for `p1` and `p2`.

    Values: float32 (or the codec that stands between, `topk+qsgd+deepreduce`), deflated, or sorted and fitted by a
    curve of at most eight segments; it needs places in the order of values, or a map of log2 r bits each beside codes
    that have an order of their own. Up to 64 values, and such as are not finite, are not fitted.
    """

    index: str = knob("auto", choices=("auto", *_LOSSLESS, "bloom"), doc="the code of places")
    policy: str = knob("p0", choices=("p0", "p1", "p2"), doc="which of the places that pass a Bloom filter are sent")
    rate: float = knob(0.001, above=0, high=0.5, doc="f: share of other places that pass a Bloom filter")
    values: str = knob("coded", choices=("coded", "deflate", "curve"), doc="the code of values")

    def objects(self, inner: Compressor) -> str | None:
        if isinstance(inner, PlaceSelector):
            return None
        if isinstance(inner, Selected) and not inner.values.ragged and self.values == "coded":
            return None
        return "places and values are encoded behind a selector; write topk(0.01)+deepreduce(bloom)"

    def around(self, inner: Compressor) -> Compressor:
        return DeepReduced(inner if isinstance(inner, Selected) else Selected(inner), self)  # type: ignore[arg-type]


@dataclass(frozen=True)
class DeepReduced(Codec):
    """The codec that a chain with `deepreduce` becomes. A message is its number of selected places, places, values."""

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "select"
    inner: Selected
    how: DeepReduce

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        places = self.inner.selector.choose(flat, meet)
        count, fits = len(places), self._fits(flat[places])
        if self.how.index == "bloom":
            m, h = bloom.size(count, self.how.rate)
            index = bloom.write(places, m, h)
            places = self._picked(bloom.passing(index, m, h, flat.numel()), count, m, h, meet)
            fits = self._fits(flat[places])
        else:
            if fits and self.how.index in _IN_ANY_ORDER:
                places = places[flat[places].argsort(descending=True)]
            index = self._write_places(places, flat.numel())
        head = torch.tensor([count], dtype=torch.int32, device=x.device)
        return pack(head, index, self._write_values(flat[places], fits, meet))

    def read(self, payload: Tensor, numel: int, meet: Meet) -> tuple[Tensor, Tensor]:
        """Return the places and values of a message."""
        count, rest = int(payload[:4].clone().view(torch.int32)), payload[4:]
        if self.how.index == "bloom":
            m, h = bloom.size(count, self.how.rate)
            index, rest = rest.tensor_split([bits.length(m, 1)])
            places = self._picked(bloom.passing(index, m, h, numel), count, m, h, meet)
        else:
            places, rest = self._read_places(rest, count, numel)
        return places, self._read_values(rest, len(places), meet)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        dense = torch.full(shape, self.left_out, device=payload.device)
        self.add(dense, payload, meet)
        return dense

    def add(self, total: Tensor, payload: Tensor, meet: Meet) -> None:
        places, values = self.read(payload, total.numel(), meet)
        total.view(-1).index_add_(0, places, values)

    def _picked(self, found: Tensor, count: int, m: int, h: int, meet: Meet) -> Tensor:
        """Return which of the places that pass a filter are sent, in ascending order: all workers know that."""
        if self.how.policy == "p0" or len(found) <= count:
            return found
        order = draws.at(meet.key("policy", shared=True), found)
        if self.how.policy == "p2":
            order += bloom.conflicts(found, m, h) << draws.BITS
        return found[order.argsort(stable=True)[:count].sort().values]

    def _write_places(self, places: Tensor, numel: int) -> Tensor:
        if self.how.index != "auto":
            return _write_code(self.how.index, places, numel)
        written = [_write_code(code, places, numel) for code in _LOSSLESS]
        best = min(range(len(written)), key=lambda i: len(written[i]))
        return torch.cat([written[best].new_tensor([best]), written[best]])

    def _read_places(self, payload: Tensor, count: int, numel: int) -> tuple[Tensor, Tensor]:
        code = self.how.index
        if code == "auto":
            code, payload = _LOSSLESS[int(payload[0])], payload[1:]
        return run_lengths.read(payload) if code == "runs" else place_codes.read(code, payload, count, numel)

    def _fits(self, values: Tensor) -> bool:
        return self.how.values == "curve" and len(values) > _FEW and bool(values.isfinite().all())

    def _write_values(self, values: Tensor, fits: bool, meet: Meet) -> Tensor:
        """Encode values in the order of their places; those that are fitted may need a map, of log2 r bits each."""
        if self.how.values == "coded":
            return self.inner.values.encode(values, meet)
        plain = values.contiguous().view(torch.uint8)
        if self.how.values == "deflate":
            deflated = np.frombuffer(zlib.compress(plain.cpu().numpy().tobytes()), np.uint8).copy()
            return torch.from_numpy(deflated).to(values.device)
        if not fits:
            return torch.cat([plain.new_zeros(1), plain])
        order = values.argsort(descending=True)
        fitted = torch.cat([plain.new_ones(1), curve.write(values[order])])
        if self.how.index in _IN_ANY_ORDER:
            return fitted
        return torch.cat([fitted, bits.pack(order.argsort(), bits.width(len(values) - 1))])

    def _read_values(self, payload: Tensor, count: int, meet: Meet) -> Tensor:
        if self.how.values == "coded":
            return self.inner.values.decode(payload, torch.Size([count]), meet)
        if self.how.values == "deflate":
            inflated = np.frombuffer(zlib.decompress(payload.cpu().numpy().tobytes()), np.float32).copy()
            return torch.from_numpy(inflated).to(payload.device)
        if not int(payload[0]):
            return payload[1:].clone().view(torch.float32)
        values = curve.read(payload[1 : 1 + curve.BYTES].clone())
        if self.how.index in _IN_ANY_ORDER:
            return values
        return values[bits.unpack(payload[1 + curve.BYTES :], bits.width(count - 1), count).long()]

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the largest number of bytes; beside a Bloom filter, of which twice as many others pass as should."""
        count = self.inner.selector.count(spec.numel)
        if self.how.index == "bloom":
            index, sent = bits.length(bloom.size(count, self.how.rate)[0], 1), count
            if self.how.policy == "p0":
                sent = min(spec.numel, count + math.ceil(2 * self.how.rate * spec.numel) + 32)
        else:
            codes = _LOSSLESS if self.how.index == "auto" else (self.how.index,)
            index, sent = min(_most(code, count, spec.numel) for code in codes) + (self.how.index == "auto"), count
        values = self.inner.values.payload_bytes(TensorSpec(spec.name, (sent,), torch.float32), size)
        more = {"coded": 0, "deflate": 11 + 5 * (1 + sent // 4096), "curve": 1}[self.how.values]
        if self.how.values == "curve" and sent > _FEW:
            more += curve.BYTES + bits.length(sent, bits.width(sent))
        return 4 + index + values + more


def _write_code(code: str, places: Tensor, numel: int) -> Tensor:
    return run_lengths.write(places) if code == "runs" else place_codes.write(code, places, numel)


def _most(code: str, count: int, numel: int) -> int:
    return run_lengths.most(count, numel) if code == "runs" else place_codes.most(code, count, numel)
