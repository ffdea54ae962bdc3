"""Whole buckets of which the largest values of every chunk are sent in two bits, as SparseLoCo sends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket
from laconic.compression.bucket_means import bucketed_rows
from laconic.compression.codes import bits
from laconic.compression.payload import pack, unpack


@dataclass(frozen=True)
class _Chunks:
    """Chunks of one length: where they lie in the bucket, and which places they have among all that are sent."""

    length: int
    count: int  # places that are sent of each
    runs: list[tuple[int, int]]  # the ranges of the bucket that they fill
    starts: Tensor
    offsets: Tensor


class ChunkLayout:
    """What is sent of tensors of these lengths that lie one behind another: the `k` largest of every chunk of each."""

    def __init__(self, lengths: Sequence[int], chunk: int, k: int, device: torch.device) -> None:
        self.chunk = chunk
        firsts = list(accumulate(lengths, initial=0))
        rows = [
            (first + at, min(chunk, n - at), t)
            for t, (first, n) in enumerate(zip(firsts, lengths, strict=False))
            for at in range(0, n, chunk)
        ]
        sent = [min(k, length) for _, length, _ in rows]
        offsets = list(accumulate(sent, initial=0))
        self.total, self.numel = offsets[-1], firsts[-1]
        self.counts = [0] * len(lengths)
        for (_, _, t), count in zip(rows, sent, strict=True):
            self.counts[t] += count
        alike: dict[int, list[int]] = {}
        for t, count in enumerate(self.counts):
            alike.setdefault(count, []).append(t)
        self._alike = list(alike.values())  # the tensors of which as many values are sent
        kinds: dict[int, list[int]] = {}
        for r, (_, length, _) in enumerate(rows):
            kinds.setdefault(length, []).append(r)

        def table(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64).to(device)

        self._kinds = [
            _Chunks(
                length,
                min(k, length),
                _runs([rows[r][0] for r in which], length),
                table([rows[r][0] for r in which]),
                table([offsets[r] for r in which]),
            )
            for length, which in kinds.items()
        ]
        self._row_starts, self._row_counts = table([start for start, _, _ in rows]), table(sent)
        self._row_tensors = table([t for _, _, t in rows])

    @property
    def whole_bytes(self) -> bool:
        """Whether each tensor's places and codes end with a byte, so that all of them can be packed as one."""
        width = bits.width(self.chunk - 1)
        return all(count * width % 8 == 0 and count * 2 % 8 == 0 for count in self.counts)

    def choose(self, flat: Tensor) -> Tensor:
        """Return the places of the bucket that are sent, in ascending order."""
        size = torch.where(flat.isnan(), torch.inf, flat.abs())
        places = torch.empty(self.total, dtype=torch.int64, device=flat.device)
        for kind in self._kinds:
            parts = [size[a:b] for a, b in kind.runs]
            rows = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(-1, kind.length)
            own = rows.topk(kind.count, dim=1, sorted=False).indices.sort(dim=1).values
            within = torch.arange(kind.count, device=flat.device)
            places[(kind.offsets[:, None] + within).view(-1)] = (own + kind.starts[:, None]).view(-1)
        return places

    def _of_rows(self, values: Tensor) -> Tensor:
        """Return for each place that is sent what belongs to its chunk."""
        return values.repeat_interleave(self._row_counts, output_size=self.total)

    def encode(self, flat: Tensor, deviations: float) -> Tensor:
        """Return the message of a bucket: places within chunks, two bits a value, and each tensor's table."""
        places = self.choose(flat)
        values = flat[places].split(self.counts)
        codes, tables = [values[0]] * len(values), [values[0]] * len(values)
        for which in self._alike:
            own, means, shifts = bucketed_rows(torch.stack([values[t] for t in which]), 4, deviations)
            found = zip(which, own.unbind(), torch.cat([means, shifts[:, None]], dim=1).unbind(), strict=True)
            for t, numbers, table in found:
                codes[t], tables[t] = numbers, table
        within = places - self._of_rows(self._row_starts)
        written = bits.pack(within, bits.width(self.chunk - 1))
        return pack(written, bits.pack(torch.cat(codes), 2), torch.cat(tables))

    def decode(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places in the bucket and the values that a message holds."""
        width, tensors = bits.width(self.chunk - 1), len(self.counts)
        fields = (bits.length(self.total, width), bits.length(self.total, 2))
        written, packed, tables = unpack(
            payload, (torch.uint8, fields[0]), (torch.uint8, fields[1]), (torch.float32, 5 * tensors)
        )
        places = bits.unpack(written, width, self.total).long() + self._of_rows(self._row_starts)
        codes = bits.unpack(packed, 2, self.total).long() + 4 * self._of_rows(self._row_tensors)
        tables = tables.view(tensors, 5)
        return places, (tables[:, :4] + tables[:, 4:]).view(-1)[codes]

    def exchange(self, bucket: TensorBucket, deviations: float, left_out: float, meet: BucketMeet) -> BucketExchange:
        """Exchange a bucket, as `exchange_bucket` does."""
        payload = self.encode(bucket.flat, deviations)
        own = None
        if meet.own:
            places, values = self.decode(payload)
            own = torch.full_like(bucket.flat, left_out).index_add_(0, places, values)
        entries = [self.decode(row) for row in (yield meet.gather(payload))]
        mean = kernels.mean_of_sparse([p for p, _ in entries], [v for _, v in entries], self.numel, left_out)
        bucket.flat.copy_(mean)
        return own


def _runs(starts: Sequence[int], length: int) -> list[tuple[int, int]]:
    """Return the ranges that chunks of one length fill, with those that follow each other made one."""
    found: list[tuple[int, int]] = []
    for start in starts:
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], start + length
        else:
            found.append((start, start + length))
    return found
