"""A residual network on CIFAR-10, trained by any number of workers.

    LACONIC_DATA=data python examples/cifar.py                                   # one worker
    laconic run --workers 4 --strategy "bsp / power_sgd(4)+ef" examples/cifar.py --epochs 30

It is a plain PyTorch script in which two lines have changed; the comments "changed" mark them. ResNet-20 (He et al.,
2016) with group instead of batch normalisation, whose statistics would differ between workers. A batch with its crops
and mirror images depends on seed, step and worker alone, so that a resumed run sees what an undisturbed one would see.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import laconic

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Of the training images' channels."""
MARGIN = 4  # pixels by which a crop may be off the centre


class Residual(nn.Module):
    """Two convolutions that add to their input, which is thinned and padded with zeros where the size changes."""

    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        self.stride, self.more = channels // before, channels - before
        self.first = nn.Conv2d(before, channels, 3, self.stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm_first, self.norm_second = nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm_second(self.second(functional.relu(self.norm_first(self.first(x)))))
        kept = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return functional.relu(inner + kept)


def build_model(seed: int, blocks: int = 3, width: int = 16) -> nn.Module:
    """Three stages of so many blocks; with three of 16, 32 and 64 channels it is ResNet-20, 270 thousand parameters."""
    torch.manual_seed(seed)
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(8, width), nn.ReLU()]
    channels = [width << stage for stage in range(3) for _ in range(blocks)]
    body = [Residual(before, after) for before, after in zip([width, *channels], channels, strict=False)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def load_images(path: Path, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then those of the test set: at most so many of each, as bytes."""
    from PIL import Image

    with np.load(path, allow_pickle=False) as kept:
        data, offsets, labels, is_test = (kept[name] for name in ("data", "offsets", "labels", "test"))
    found = []
    for part in (~is_test.astype(bool), is_test.astype(bool)):
        chosen = np.random.default_rng(0).permutation(np.flatnonzero(part))[:most]  # the file has class after class
        decoded = [np.asarray(Image.open(io.BytesIO(data[offsets[i] : offsets[i + 1]].tobytes()))) for i in chosen]
        found += [torch.tensor(np.stack(decoded)).permute(0, 3, 1, 2), torch.tensor(labels[chosen]).long()]
    return found[0], found[1], found[2], found[3]


def normalised(images: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(each, device=images.device).view(3, 1, 1) for each in (MEAN, DEVIATION))
    return (images.float() / 255 - mean) / deviation


def crops(images: Tensor, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Return each image moved by so many pixels less the margin, with zeros where it ends, and mirrored or not."""
    padded = functional.pad(images, (MARGIN,) * 4)
    side = torch.arange(images.shape[-1], device=images.device)
    columns = torch.where(mirrored[:, None], side.flip(0), side) + right[:, None]
    rows = side + down[:, None]
    each = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def draw_batch(images: Tensor, labels: Tensor, batch: int, place: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Return a batch of this seed, step and worker: images off the centre by some pixels, half of them mirrored."""
    draw = np.random.default_rng(place)
    chosen = torch.tensor(draw.integers(len(images), size=batch), device=images.device)
    down, right = torch.tensor(draw.integers(2 * MARGIN + 1, size=(2, batch)), device=images.device)
    mirrored = torch.tensor(draw.random(batch) < 0.5, device=images.device)
    return normalised(crops(images[chosen], down, right, mirrored)), labels[chosen]


@torch.no_grad()
def validate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Loss and accuracy on the test images."""
    model.eval()
    scores = torch.cat([model(normalised(part)) for part in images.split(500)])
    model.train()
    return functional.cross_entropy(scores, labels).item(), (scores.argmax(1) == labels).float().mean().item()


def rate_at(step: int, steps: int, warm_up: int = 200) -> float:
    """The share of the learning rate: it rises along a line, and falls along a cosine to zero."""
    return min((step + 1) / min(warm_up, steps), 0.5 * (1 + math.cos(math.pi * step / steps)))


def main(arguments: Sequence[str] | None = None) -> nn.Module:
    args = parse(arguments)
    if not args.data.is_file():
        raise SystemExit(f"there are no images at {args.data}: set LACONIC_DATA, or pass --data jpeg.npz")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, labels, test_images, test_labels = (x.to(device) for x in load_images(args.data, args.most))
    model = build_model(args.seed, args.blocks).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    model, optimizer = laconic.distribute(model, optimizer)  # changed (1 of 2): the workers train together

    an_epoch = max(1, len(images) // (args.batch * laconic.size()))
    planned = args.epochs * an_epoch
    steps = min(args.steps, planned)
    done = laconic.resume(args.checkpoint, model, optimizer).get("step", 0) if args.checkpoint else 0
    for step in range(done, steps):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate_at(step, planned)
        place = (args.seed, step, laconic.rank())  # changed (2 of 2): each worker draws its own batches
        x, y = draw_batch(images, labels, args.batch, place)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % an_epoch and step + 1 < steps:
            continue
        if laconic.rank() == 0:  # the others hold the same model: once is enough
            nats, accuracy = validate(model, test_images, test_labels)
            laconic.log(loss=nats, accuracy=accuracy)
            print(f"step {step + 1}  validation loss {nats:.4f}  accuracy {accuracy:.2%}", flush=True)
        if args.checkpoint:
            laconic.checkpoint(args.checkpoint, model, optimizer, step=step + 1)
    return model


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a residual network on CIFAR-10.")
    parser.add_argument("--data", type=Path, default=default_images(), help="the images")
    parser.add_argument("--epochs", type=int, default=60, help="passes over the training images (default 60)")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="stop after so many steps, even within an epoch")
    parser.add_argument("--batch", type=int, default=32, help="images per worker and step (default 32)")
    parser.add_argument("--lr", type=float, default=0.1, help="largest learning rate (default 0.1)")
    parser.add_argument("--blocks", type=int, default=3, help="blocks of each stage (default 3: ResNet-20)")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="images of each set (default all)")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and of all batches (default 0)")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="save here after every epoch, and resume from here")
    return parser.parse_args(arguments)


def default_images() -> Path:
    """CIFAR-10 in the project's data folder, which is not part of the repository."""
    beside = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    return Path(os.environ.get("LACONIC_DATA", beside)) / "cifar10" / "jpeg.npz"


if __name__ == "__main__":
    main()
