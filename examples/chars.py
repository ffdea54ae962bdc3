"""A character transformer on any text file, trained by any number of workers.

    python examples/chars.py my.txt                                              # one worker
    laconic run --workers 4 --strategy "bsp / none / allreduce" examples/chars.py my.txt --size medium

It is a plain PyTorch script in which two lines have changed; the comments "changed" mark them. A batch depends on
(seed, step, worker) and nothing else, so a resumed run reads exactly what an undisturbed one would have read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import laconic

HEAD_WIDTH = 32


@dataclass(frozen=True)
class Shape:
    """What fixes the number of parameters: about 12 x depth x width^2."""

    depth: int
    width: int
    context: int


SIZES = {"small": Shape(depth=4, width=128, context=128), "medium": Shape(depth=6, width=384, context=256)}


class Layer(nn.Module):
    """Attention, then two linear layers; each adds to its input, normalised before (which trains without warm-up)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm_attention(x)).view(batch, length, 3, width // HEAD_WIDTH, HEAD_WIDTH)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class CharTransformer(nn.Module):
    """Predicts each next character from the ones before it, at most `context` of them."""

    def __init__(self, characters: int, shape: Shape) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.layers = nn.Sequential(*(Layer(shape.width) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, characters)
        for embedding in (self.character, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.character(text) + self.position.weight[: text.shape[1]]
        return self.head(self.norm(self.layers(x)))


def build_model(seed: int, characters: int, shape: Shape) -> nn.Module:
    torch.manual_seed(seed)
    return CharTransformer(characters, shape)


def load_text(path: Path) -> tuple[Tensor, Tensor, int]:
    """Training text, held-out text (the last tenth) and the number of different characters."""
    text = path.read_text(encoding="utf-8")
    numbers = {character: i for i, character in enumerate(sorted(set(text)))}
    encoded = torch.tensor([numbers[character] for character in text])
    training, held_out = encoded.tensor_split([int(0.9 * len(encoded))])
    return training, held_out, len(numbers)


def draw_batch(text: Tensor, context: int, batch: int, place: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Random windows and, for each of their characters, the next one; `place` is (seed, step, worker)."""
    starts = np.random.default_rng(place).integers(0, len(text) - context, size=batch)
    windows = torch.stack([text[start : start + context + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Nats per character."""
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(model: nn.Module, held_out: Tensor, context: int, characters: int) -> float:
    """Nats per character over neighbouring windows of the held-out text, as many as `characters` allows."""
    windows = max(1, min(characters, len(held_out) - 1) // context)
    inputs = held_out[: windows * context].view(windows, context)
    targets = held_out[1 : windows * context + 1].view(windows, context)
    model.eval()
    pairs = zip(inputs.split(64), targets.split(64), strict=True)
    total = sum(loss_of(model, x, y).item() * len(x) for x, y in pairs)
    model.train()
    return total / windows


def main(arguments: Sequence[str] | None = None) -> nn.Module:
    args = parse(arguments)
    training, held_out, characters = load_text(args.text)
    shape: Shape = args.shape
    if len(held_out) <= shape.context:
        raise SystemExit(
            f"{args.text} has {len(training) + len(held_out):,} characters and its last tenth must fill a context of "
            f"{shape.context}: give a longer text, or --context {max(1, len(held_out) - 1)}"
        )
    model = build_model(args.seed, characters, shape)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer = laconic.distribute(model, optimizer)  # changed (1 of 2): the workers train together

    done = 0
    if args.checkpoint:
        done = laconic.resume(args.checkpoint, model, optimizer).get("step", 0)
    for step in range(done, args.steps):
        place = (args.seed, step, laconic.rank())  # changed (2 of 2): each worker draws its own batches
        loss = loss_of(model, *draw_batch(training, shape.context, args.batch, place))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % args.every and step + 1 < args.steps:
            continue
        if laconic.rank() == 0:  # the others hold the same model: once is enough
            nats = validate(model, held_out, shape.context, args.validate)
            laconic.log(loss=nats)
            print(f"step {step + 1}  training loss {loss.item():.4f}  validation loss {nats:.4f}", flush=True)
        if args.checkpoint:
            laconic.checkpoint(args.checkpoint, model, optimizer, step=step + 1)
    return model


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a character transformer on a text file.")
    parser.add_argument("text", nargs="?", type=Path, help="any UTF-8 text (default: the project's Shakespeare)")
    parser.add_argument("--size", choices=SIZES, default="small", help="about 0.8 or 10.7 million parameters")
    parser.add_argument("--depth", type=int, help="layers, instead of the size's own")
    parser.add_argument("--width", type=int, help=f"a multiple of {HEAD_WIDTH}, instead of the size's own")
    parser.add_argument("--context", type=int, help="characters the model looks back, instead of the size's own")
    parser.add_argument("--steps", type=int, default=2000, help="steps in all (default 2000)")
    parser.add_argument("--batch", type=int, default=16, help="windows per worker and step (default 16)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the batches (default 0)")
    parser.add_argument("--every", type=int, default=250, help="validate and save after so many steps (default 250)")
    parser.add_argument("--validate", type=int, default=100_000, help="at most so many characters (default 100000)")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="save here, and resume from here")
    args = parser.parse_args(arguments)
    chosen = {name: getattr(args, name) for name in ("depth", "width", "context") if getattr(args, name) is not None}
    args.shape = replace(SIZES[args.size], **chosen)
    if min(args.every, args.batch, args.validate, args.shape.depth, args.shape.context) < 1:
        parser.error("--every, --batch, --validate, --depth and --context are counts: give 1 or more")
    if args.shape.width < HEAD_WIDTH or args.shape.width % HEAD_WIDTH:
        parser.error(f"--width {args.shape.width}: a head is {HEAD_WIDTH} wide, so give a multiple of {HEAD_WIDTH}")
    if args.text is None:
        args.text = default_text()
    if not args.text.is_file():
        parser.error(f"there is no text at {args.text}: pass a text file, for example `chars.py my.txt`")
    return args


def default_text() -> Path:
    """Shakespeare in the project's data folder, which is not part of the repository."""
    beside = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    return Path(os.environ.get("LACONIC_DATA", beside)) / "text" / "tinyshakespeare.txt"


if __name__ == "__main__":
    main()
