"""AQ-SGD: between stages, the change of each sample's activation since it was last seen, in a few bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from laconic.compression.codes import bits as packed
from laconic.compression.payload import pack, unpack
from laconic.errors import PipelineError
from laconic.knobs import Technique
from laconic.parallel.pipeline.boundary import BoundaryCode
from laconic.registry import knob, technique


@technique("aq_sgd", paper="Wang et al., NeurIPS 2022")
@dataclass(frozen=True)
class AqSgd(Technique):
    """Both ends of a border keep every sample's activation. The first time a sample comes it is sent in full; later,
    the change since the last time is sent in a few bits, and both ends add what was decoded: the next stage computes on
    the sum, whose error shrinks as training settles. Gradients come back in a few bits without memory, rounded at
    random so that their mean is right. A vector (the last dimension) has a scale of its own, of 32 bits.

    The memory is one activation for each sample and border, so that this is for several epochs over samples that do not
    change. With 32 bits everything is sent as it is.
    """

    axis: ClassVar[str] = "parallel"

    forward: int = knob(4, low=1, high=32, doc="bits of a change of an activation; 32 sends activations as they are")
    backward: int = knob(8, low=1, high=32, doc="bits of a gradient; 32 sends gradients as they are")

    def codes(self, stages: int, seed: int = 0) -> Mapping[tuple[Literal["forward", "backward"], int], BoundaryCode]:
        """Return the codes of all borders between so many stages, for one device; `seed` is of the random rounding."""
        found: dict[tuple[Literal["forward", "backward"], int], BoundaryCode] = {}
        for border in range(stages - 1):
            found["forward", border] = ChangesOfSamples(self.forward)
            found["backward", border] = RandomlyRounded(self.backward, seed=seed * stages + border)
        return found


class RandomlyRounded:
    """Each vector in so many bits an element, uniformly between plus and minus its largest value, rounded at random."""

    def __init__(self, bits: int, seed: int = 0) -> None:
        self.bits = bits
        self._draw = torch.Generator().manual_seed(seed)

    def nbytes(self, shape: torch.Size, samples: Sequence[int] | None) -> int:
        del samples
        return message_bytes(shape, self.bits)

    def encode(self, tensor: Tensor, samples: Sequence[int] | None) -> Tensor:
        del samples
        return to_message(tensor.float(), self.bits, torch.rand(tensor.shape, generator=self._draw))

    def decode(self, message: Tensor, shape: torch.Size, samples: Sequence[int] | None) -> Tensor:
        del samples
        return from_message(message, shape, self.bits)


class ChangesOfSamples:
    """Each sample's change since it was last sent; what was decoded is remembered by sample.

    A message has the samples that are new, whole, and then the changes of the others.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.memory: dict[int, Tensor] = {}

    def nbytes(self, shape: torch.Size, samples: Sequence[int] | None) -> int:
        if self.bits == 32:
            return 4 * shape.numel()
        new, known = self._places(samples, shape)
        return sum(self._parts(shape, len(new), len(known)))

    def encode(self, tensor: Tensor, samples: Sequence[int] | None) -> Tensor:
        x = tensor.float()
        if self.bits == 32:
            return pack(x.reshape(-1))
        new, known = self._places(samples, x.shape)
        whole = x[new]
        parts = [pack(whole.reshape(-1))] if new else []
        if known:
            before = self._remembered(samples, known)
            changed = to_message(x[known] - before, self.bits, None)
            parts.append(changed)
            self._remember(samples, known, before + from_message(changed, before.shape, self.bits))
        self._remember(samples, new, whole.clone())
        return torch.cat(parts)

    def decode(self, message: Tensor, shape: torch.Size, samples: Sequence[int] | None) -> Tensor:
        if self.bits == 32:
            return unpack(message, (torch.float32, shape.numel()))[0].view(shape)
        new, known = self._places(samples, shape)
        first, _ = self._parts(shape, len(new), len(known))
        found = torch.empty(shape)
        if new:
            found[new] = unpack(message[:first], (torch.float32, first // 4))[0].view(len(new), *shape[1:])
        if known:
            before = self._remembered(samples, known)
            found[known] = before + from_message(message[first:], before.shape, self.bits)
        self._remember(samples, [*new, *known], found[[*new, *known]])
        return found

    def _places(self, samples: Sequence[int] | None, shape: torch.Size) -> tuple[list[int], list[int]]:
        """Return where samples stand that are new, and where those that are remembered."""
        numbers = _named(samples, shape)
        new = [place for place, sample in enumerate(numbers) if sample not in self.memory]
        return new, [place for place, sample in enumerate(numbers) if sample in self.memory]

    def _parts(self, shape: torch.Size, new: int, known: int) -> tuple[int, int]:
        """Return the bytes of the samples that are new, and of the others' changes."""
        changed = message_bytes(torch.Size([known, *shape[1:]]), self.bits) if known else 0
        return 4 * new * shape[1:].numel(), changed

    def _remembered(self, samples: Sequence[int] | None, places: Sequence[int]) -> Tensor:
        assert samples is not None
        return torch.stack([self.memory[samples[place]] for place in places])

    def _remember(self, samples: Sequence[int] | None, places: Sequence[int], rows: Tensor) -> None:
        assert samples is not None
        for place, row in zip(places, rows, strict=True):
            self.memory[samples[place]] = row


def _named(samples: Sequence[int] | None, shape: torch.Size) -> Sequence[int]:
    if samples is None or len(samples) != shape[0]:
        raise PipelineError(
            "AQ-SGD remembers activations by sample: give every device's step the numbers of the batch's samples"
        )
    if len(set(samples)) < len(samples):
        raise PipelineError("a sample comes twice in a microbatch, so that its change is not defined")
    return samples


def message_bytes(shape: torch.Size, bits: int) -> int:
    """Return the bytes of a tensor's codes and of its vectors' scales."""
    if bits == 32:
        return 4 * shape.numel()
    return 4 * (shape.numel() // shape[-1]) + (shape.numel() * bits + 7) // 8


def to_message(x: Tensor, bits: int, draws: Tensor | None) -> Tensor:
    """Return the message of a tensor, rounded to the nearest code or, with draws between 0 and 1, at random."""
    if bits == 32:
        return pack(x.reshape(-1))
    scales = x.abs().amax(-1, keepdim=True)
    places = (x / torch.where(scales > 0, scales, 1) + 1) / 2 * (2**bits - 1)
    codes = (places + 0.5 if draws is None else places + draws).floor().clamp(0, 2**bits - 1)
    return pack(scales.reshape(-1), packed.pack(codes.to(torch.int32).reshape(-1), bits))


def from_message(message: Tensor, shape: torch.Size, bits: int) -> Tensor:
    """Return the tensor of this shape that a message encodes."""
    if bits == 32:
        return unpack(message, (torch.float32, shape.numel()))[0].view(shape)
    vectors = shape.numel() // shape[-1]
    scales, rest = unpack(message, (torch.float32, vectors), (torch.uint8, message.numel() - 4 * vectors))
    codes = packed.unpack(rest, bits, shape.numel()).view(shape)
    found: Tensor = (codes.float() * (2 / (2**bits - 1)) - 1) * scales.view(*shape[:-1], 1)
    return found
