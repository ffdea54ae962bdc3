"""Vision models for images of 224 by 224, with torchvision's tensor names."""

from __future__ import annotations

import math

from laconic.profile.zoo.layers import Model, Tensor, convolution, dense


def resnet50(classes: int = 1000) -> Model:
    """Return ResNet-50: 161 tensors, 25.56 million parameters."""
    found = convolution("conv1", "bn1", 3, 64, 7, 112)
    inputs = 64
    for stage, (width, blocks, side) in enumerate([(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)], 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            found += convolution(f"{name}.conv1", f"{name}.bn1", inputs, width, 1, side)
            found += convolution(f"{name}.conv2", f"{name}.bn2", width, width, 3, side)
            found += convolution(f"{name}.conv3", f"{name}.bn3", width, 4 * width, 1, side)
            if block == 0:
                shortcut = f"{name}.downsample"
                found += convolution(f"{shortcut}.0", f"{shortcut}.1", inputs, 4 * width, 1, side)
            inputs = 4 * width
    return found + dense("fc", 2048, classes)


def vgg16(classes: int = 1000) -> Model:
    """Return VGG-16 without normalization: 32 tensors, 138.36 million parameters, 124 million in its dense layers."""
    found: Model = []
    inputs, place = 3, 0
    for width, layers, side in [(64, 2, 224), (128, 2, 112), (256, 3, 56), (512, 3, 28), (512, 3, 14)]:
        for _ in range(layers):
            shape, places = (width, inputs, 3, 3), side * side
            operations, moved, size = math.prod(shape) * places, (inputs + width) * places, width * places
            name = f"features.{place}"  # and its ReLU, in place
            found.append(Tensor(f"{name}.weight", shape, operations, moved, 2 * size, size, "convolution"))
            found.append(Tensor(f"{name}.bias", (width,), size))
            inputs, place = width, place + 2
        place += 1  # the pooling after them
    found += dense("classifier.0", 512 * 7 * 7, 4096, after=4)
    return found + dense("classifier.3", 4096, 4096, after=4) + dense("classifier.6", 4096, classes)
