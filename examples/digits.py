"""An image classifier on scikit-learn's handwritten digits, trained by any number of workers.

    python examples/digits.py                                                    # one worker
    laconic run --workers 4 --strategy "bsp / none / allreduce" examples/digits.py --epochs 20

It is a plain PyTorch script in which two lines have changed; the comments "changed" mark them. What the workers say to
each other is not written here but chosen at the start with `--strategy`, so that strategies are compared on one script.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import laconic


def build_model(seed: int) -> nn.Module:
    """Two convolutions and two linear layers, 38,282 parameters: enough for 99 %, small enough for a laptop."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def load_data(seed: int) -> tuple[TensorDataset, tuple[Tensor, Tensor]]:
    """1,438 images to train on and 359 to validate with; the split depends on the seed alone, not on the worker."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    training, validation = order.tensor_split([int(0.8 * len(order)) + 1])
    return TensorDataset(images[training], labels[training]), (images[validation], labels[validation])


@torch.no_grad()
def validate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Loss and accuracy. Both, because one point of accuracy is only 3.6 images: too coarse to decide anything."""
    model.eval()
    scores = model(images)
    model.train()
    accuracy = (scores.argmax(dim=1) == labels).float().mean()
    return functional.cross_entropy(scores, labels).item(), accuracy.item()


def main(arguments: Sequence[str] | None = None) -> nn.Module:
    args = parse(arguments)
    training, validation = load_data(args.seed)
    part = laconic.shard(training)  # changed (1 of 2): each worker sees its own part of the data
    if args.batch > len(part):
        raise SystemExit(f"--batch {args.batch} is more than the {len(part)} images of a worker: use a smaller one")
    sampler = laconic.ShardSampler(part, seed=args.seed)  # shuffles, and a checkpoint can remember its position
    loader = DataLoader(part, args.batch, sampler=sampler, drop_last=True)

    model = build_model(args.seed)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    model, optimizer = laconic.distribute(model, optimizer)  # changed (2 of 2): the workers train together

    step = 0
    if args.checkpoint:
        step = laconic.resume(args.checkpoint, model, optimizer, sampler=sampler).get("step", 0)
    while sampler.epoch < args.epochs and step < args.steps:
        epoch = sampler.epoch
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step >= args.steps:
                break
        if laconic.rank() == 0:  # the others hold the same model: once is enough
            nats, accuracy = validate(model, *validation)
            laconic.log(loss=nats, accuracy=accuracy)
            print(f"epoch {epoch + 1}  step {step}  validation loss {nats:.4f}  accuracy {accuracy:.2%}", flush=True)
        if args.checkpoint:
            laconic.checkpoint(args.checkpoint, model, optimizer, sampler=sampler, step=step)
    return model


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train an image classifier on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training images (default 20)")
    parser.add_argument("--batch", type=int, default=32, help="images per worker and step (default 32)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (default 0.05)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the first weights and the order (default 0)")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="save here after every epoch, and resume from here")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="stop after so many steps, even within an epoch")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
