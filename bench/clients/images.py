"""What the clients of the federated table learn: CIFAR-10, with a small convolutional network of group norms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from bench.tasks.cifar import decoded
from examples.cifar import default_images, normalised
from torch import Tensor, nn
from torch.nn import functional

FOR_TUNING = 2000
"""Of the test images, so many judge trials of rates and knobs, and the others what is reported."""


def network() -> nn.Module:
    """Three convolutions with group normalisation, each of which halves the image, and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.GroupNorm(8, after), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


@dataclass(frozen=True, eq=False)
class Images:
    """A task of `laconic.federated` whose images lie on a device; half of those of a batch are mirrored."""

    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor

    @classmethod
    def load(cls, device: torch.device, most: int) -> Images:
        """Return at most so many images to train with, and as many to test with."""
        inputs, labels, test_inputs, test_labels = (part[:most].to(device) for part in decoded(default_images()))
        return cls(normalised(inputs), labels, normalised(test_inputs), test_labels)

    def for_tuning(self, tuning: bool) -> Images:
        """Return the task judged by the images that are held out for tuning, or by the others."""
        bound = min(FOR_TUNING, len(self.test_labels) // 5)
        part = slice(None, bound) if tuning else slice(bound, None)
        return replace(self, test_inputs=self.test_inputs[part], test_labels=self.test_labels[part])

    def build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return network().to(self.inputs.device)

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        images = self.inputs[samples]
        mirrored = torch.rand(len(samples), 1, 1, 1, device=images.device) < 0.5
        return functional.cross_entropy(model(torch.where(mirrored, images.flip(3), images)), self.labels[samples])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        scores = torch.cat([model(part) for part in self.test_inputs.split(2000)])
        right = (scores.argmax(1) == self.test_labels).float().mean()
        return {"loss": functional.cross_entropy(scores, self.test_labels).item(), "accuracy": right.item()}
