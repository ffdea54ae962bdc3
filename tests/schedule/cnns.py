"""Layer by layer, what well-known CNNs compute and send, from their public definitions; biases and norms left out."""

from __future__ import annotations

from laconic.values.layer_times import LayerTimes

Layer = tuple[int, int]  # weights, multiplications per sample


def _conv(inputs: int, outputs: int, kernel: int, side: int) -> Layer:
    weights = inputs * outputs * kernel**2
    return weights, weights * side**2


def _dense(inputs: int, outputs: int) -> Layer:
    return inputs * outputs, inputs * outputs


def alexnet() -> list[Layer]:
    shapes = ((3, 64, 11, 55), (64, 192, 5, 27), (192, 384, 3, 13), (384, 256, 3, 13), (256, 256, 3, 13))
    return [_conv(*shape) for shape in shapes] + [_dense(9216, 4096), _dense(4096, 4096), _dense(4096, 1000)]


def vgg16() -> list[Layer]:
    blocks = (
        ((3, 64), (64, 64)),
        ((64, 128), (128, 128)),
        ((128, 256), (256, 256), (256, 256)),
        ((256, 512), (512, 512), (512, 512)),
        ((512, 512), (512, 512), (512, 512)),
    )
    convolutions = [_conv(a, b, 3, 224 >> place) for place, block in enumerate(blocks) for a, b in block]
    return [*convolutions, _dense(25088, 4096), _dense(4096, 4096), _dense(4096, 1000)]


def resnet50() -> list[Layer]:
    layers, inputs = [_conv(3, 64, 7, 112)], 64
    for width, blocks, side in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for block in range(blocks):
            layers += [_conv(inputs, width, 1, side), _conv(width, width, 3, side), _conv(width, 4 * width, 1, side)]
            if block == 0:
                layers.append(_conv(inputs, 4 * width, 1, side))
            inputs = 4 * width
    return [*layers, _dense(2048, 1000)]


CNNS = {"alexnet": alexnet, "vgg16": vgg16, "resnet50": resnet50}


def profile(name: str, compute_seconds: float = 0.25) -> LayerTimes:
    """Time as multiplications go, a third of it in the forward pass; gradients of four bytes each."""
    layers = CNNS[name]()
    total = sum(work for _, work in layers)
    shares = [compute_seconds * work / total for _, work in layers]
    sizes = tuple(4.0 * weights for weights, _ in layers)
    return LayerTimes(tuple(share / 3 for share in shares), tuple(2 * share / 3 for share in shares), sizes)
