"""`Profile`: the measurements of a model, a host and its links, as one value and one JSON file.

A published profile (layer times from a paper, say) is the same file written by hand: parts that were not measured are
left out. Only the virtual engine, emulated compute and planners read it; nothing in this module measures.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from laconic.errors import LaconicError
from laconic.reading import Count, Finite, Natural, NotNegative, Positive, Share, Source
from laconic.values.model_kind import Kind

VERSION = 1


class ProfileError(LaconicError, ValueError):
    """A profile is inconsistent, or a file is not a profile."""


@dataclass(frozen=True)
class Seconds:
    """A measured duration: its median, and the range in which most samples lay."""

    median: NotNegative
    low: NotNegative | None = None  # a tenth of the samples was below
    high: NotNegative | None = None  # a tenth was above
    samples: Count = 1

    def __post_init__(self) -> None:
        if not 0 <= self.median < math.inf:
            raise ProfileError(f"a duration is finite and not negative, not {self.median} s")

    @classmethod
    def of(cls, samples: Sequence[float]) -> Seconds:
        """Summarise these samples."""
        ordered = sorted(samples)
        if len(ordered) < 2:
            return cls(ordered[0], ordered[0], ordered[0])
        cuts = statistics.quantiles(ordered, n=10, method="inclusive")
        return cls(statistics.median(ordered), cuts[0], cuts[-1], len(ordered))


@dataclass(frozen=True)
class TensorTime:
    """One gradient, and the time from the previous gradient until it is ready."""

    name: str
    shape: tuple[Count, ...]
    dtype: str = "float32"
    backward_seconds: NotNegative = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.backward_seconds < math.inf or any(n < 0 for n in self.shape):
            raise ProfileError(f"{self.name!r} has no negative size and takes no negative time: {self}")

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelTimes:
    """The times of one worker's training step without communication; `tensors` are in the order in which their
    gradients become ready."""

    tensors: tuple[TensorTime, ...]
    forward: Seconds  # from the end of a step to the end of the forward pass, so data loading is in it
    backward: Seconds
    step: Seconds  # from the last gradient to the end of the optimizer's step
    even: Share = 1.0  # the mean worker's step time over the slowest one's, which a synchronous step waits for

    def __post_init__(self) -> None:
        if not 0 < self.even <= 1:
            raise ProfileError(f"the mean worker takes at most as long as the slowest, not {self.even} of it")
        names = [tensor.name for tensor in self.tensors]
        if not names or len(set(names)) != len(names):
            raise ProfileError("a model's profile lists at least one tensor, each once, by name")

    @property
    def seconds(self) -> float:
        return self.forward.median + self.backward.median + self.step.median


@dataclass(frozen=True)
class Point:
    """The time of a collective of one size; `wire_bytes` is what one worker sends.

    `alone_seconds` is its time when nothing runs beside it; `shared_seconds` is how much of a common resource
    (processors, a link) it occupies: two at once last for the longer of their times alone and the sum of their shared
    times. `pace` is the rate at which it proceeds while all workers compute: less than 1 where its threads and the
    kernel must wait for the same processors.
    """

    wire_bytes: NotNegative
    alone_seconds: NotNegative
    shared_seconds: NotNegative
    pace: Share = 1.0

    def __post_init__(self) -> None:
        possible = 0 <= self.shared_seconds <= self.alone_seconds < math.inf and 0 < self.pace <= 1
        if self.wire_bytes < 0 or not possible:
            raise ProfileError(f"a collective takes finite time, of which some may be shared: {self}")


@dataclass(frozen=True)
class OperationTimes:
    """The times of one collective on one network, by size; `alpha_seconds` and `seconds_per_byte` are the line fitted
    to them."""

    operation: str
    dtype: str
    points: tuple[Point, ...]
    alpha_seconds: Finite
    seconds_per_byte: NotNegative

    def __post_init__(self) -> None:
        sizes = [point.wire_bytes for point in self.points]
        if not sizes or any(b <= a for a, b in pairwise(sizes)):
            raise ProfileError(f"the points of {self.operation} ({self.dtype}) ascend in bytes, not {sizes}")

    def at(self, wire_bytes: float) -> Point:
        """Return the time for this size: interpolated between points, the smallest point's below them, at the fitted
        rate beyond them."""
        first, last = self.points[0], self.points[-1]
        if wire_bytes <= first.wire_bytes:
            return first
        if wire_bytes >= last.wire_bytes:
            more = (wire_bytes - last.wire_bytes) * self.seconds_per_byte
            return Point(wire_bytes, last.alone_seconds + more, last.shared_seconds + more, last.pace)
        a, b = next((a, b) for a, b in pairwise(self.points) if wire_bytes <= b.wire_bytes)
        share = (wire_bytes - a.wire_bytes) / (b.wire_bytes - a.wire_bytes)
        alone, shared, pace = (
            getattr(a, name) + share * (getattr(b, name) - getattr(a, name))
            for name in ("alone_seconds", "shared_seconds", "pace")
        )
        return Point(wire_bytes, alone, min(shared, alone), pace)


@dataclass(frozen=True)
class LinkTimes:
    """One network with all workers running: the rate and delay it was configured to have, and the times of collectives
    on it."""

    bits_per_second: Positive | None  # None: not limited
    delay_seconds: NotNegative  # one way
    operations: tuple[OperationTimes, ...]

    def find(self, operation: str, dtype: str) -> OperationTimes | None:
        """Return the times of an operation in this dtype or, failing that, in float32."""
        for wanted in (dtype, "float32"):
            for times in self.operations:
                if (times.operation, times.dtype) == (operation, wanted):
                    return times
        return None


@dataclass(frozen=True)
class CodecTimes:
    """The extra work of a compressor and an architecture on a message, compared with `none / allreduce`.

    It is given in seconds per bucket of tensors, per tensor and per element, before the first message is sent
    (`encode`) and after (`decode`).
    """

    words: str
    encode_seconds_per_tensor: Finite
    encode_seconds_per_element: Finite
    decode_seconds_per_tensor: Finite
    decode_seconds_per_element: Finite
    encode_seconds_per_bucket: Finite = 0.0
    decode_seconds_per_bucket: Finite = 0.0

    def seconds(self, part: str, tensors: int, elements: int, buckets: int = 1) -> float:
        """Return the time of one part, "encode" or "decode", for so many tensors and elements in so many buckets."""
        per_bucket: float = getattr(self, f"{part}_seconds_per_bucket")
        per_tensor: float = getattr(self, f"{part}_seconds_per_tensor")
        per_element: float = getattr(self, f"{part}_seconds_per_element")
        return max(0.0, buckets * per_bucket + tensors * per_tensor + elements * per_element)


@dataclass(frozen=True)
class Profile:
    """All measurements; the `workers` were on one host, described by `machine`, and ran at the same time."""

    model: ModelTimes
    workers: Natural = 1
    machine: Mapping[str, Any] = field(default_factory=dict)
    links: LinkTimes | None = None
    codecs: tuple[CodecTimes, ...] = ()
    kind: Kind | None = None  # of model; None: told from the tensors
    optimizer: str = ""  # the name of its class in lower case; empty: not known

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ProfileError(f"a profile is of at least one worker, not {self.workers}")

    def codec(self, words: str) -> CodecTimes | None:
        """Return the times of these words, or None where they were not measured."""
        return next((codec for codec in self.codecs if codec.words == words), None)

    # ------------------------------------------------------------------------------------------ files

    def to_json(self) -> str:
        return json.dumps({"laconic_profile": VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "this text") -> Profile:
        """Read a profile from JSON text; `where` names its source in errors."""
        source = _source(where)
        table = source.json(text)
        if not isinstance(table, dict) or "laconic_profile" not in table:
            raise source.refused("it does not say that it is one")
        version = table.pop("laconic_profile")
        if version != VERSION:
            raise ProfileError(
                f"{where} is a profile of version {version}, this laconic reads version {VERSION}: measure again with "
                "`laconic profile --fresh`"
            )
        return source.value({**table, "model": _with_spreads(table.get("model"))}, cls)

    @classmethod
    def read(cls, path: str | Path) -> Profile:
        """Read a profile from a file."""
        return cls.from_json(_source(path).text(), str(path))


def _source(where: str | Path) -> Source:
    instead = "`laconic profile --out FILE SCRIPT` writes one, and docs/profiles.md says what one written by hand holds"
    return Source(where, "profile", instead, ProfileError)


def _with_spreads(model: Any) -> Any:
    """Return a model's table whose durations, which hand-written files may give as plain numbers, are tables."""
    if not isinstance(model, dict):
        return model
    parts = {part: model[part] for part in ("forward", "backward", "step") if isinstance(model.get(part), int | float)}
    return model | {part: {"median": median} for part, median in parts.items()}
