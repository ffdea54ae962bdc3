"""What rules with an outer optimizer cost: an inner step over a plain one, an outer step in inner ones, and memory.

    python bench/outer_step.py [--model gpt|large|many|small] [--period 8] [--blocks 9] [SENTENCE ...]

One rank, so that nothing travels: what is left is copies, encoding, decoding and Python. On a GPU with NCCL, on a CPU
with gloo and one thread.

All contestants train the same model in one process, in turns: in each block every one makes a round, and each step is
timed by itself. The rows show medians over blocks: of the inner steps over the plain contestant's in the same block,
with the quartiles; of the outer step in inner ones, which is what a round takes above its other inner steps; and on a
GPU the memory at the peak of a round beside that of the plain contestant, in GiB, without its last step and with it.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import laconic
from gpu_step import Transformer, convolutions

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")


def sentences(period: int) -> list[str]:
    """Return the sentences that are measured unless others are given."""
    return [
        f"diloco({period})",
        f"diloco({period}, offload=true)",
        f"diloco({period}) / int8+two_hop",
        f"streaming_diloco({period}, fragments=2, overlap=1) / e3m0",
        f"diloco({period}, lr=1.0, momentum=0.0) / chunk_topk(k=64)+two_bit+ef(decay=0.95)",
    ]


@dataclass(frozen=True)
class Task:
    """A model and what it is fed."""

    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]


def tokens(rows: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return rows of tokens, each its own target."""
    drawn = torch.randint(vocabulary, (rows, length), device=DEVICE)
    return drawn, drawn.flatten()


def images(rows: int, side: int) -> tuple[Tensor, Tensor]:
    """Return random images and their classes."""
    return torch.randn(rows, 3, side, side, device=DEVICE), torch.randint(1000, (rows,), device=DEVICE)


TASKS = {
    "gpt": Task(lambda: Transformer(12, 768, 12), lambda: tokens(8, 1024, 50304)),
    "large": Task(lambda: Transformer(24, 2048, 16), lambda: tokens(8, 1024, 50304)),
    "many": Task(convolutions, lambda: images(32, 32) if ON_GPU else images(2, 8)),
    "small": Task(lambda: Transformer(12, 64, 4, 512, 64), lambda: tokens(2, 16, 512)),
}


class Contestant:
    """One way to train the task's model: plainly, or by a sentence."""

    def __init__(self, name: str, task: Task) -> None:
        torch.manual_seed(0)
        self.name = name
        with DEVICE:
            self.model = task.build()
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=True)
        if name != "plain":
            self.model, self.optimizer = laconic.distribute(self.model, self.optimizer, name)
        self._inputs, self._targets = task.batch()

    def step(self) -> float:
        """Make a step; return its milliseconds."""
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16) if ON_GPU else nullcontext():
            scores = self.model(self._inputs)
            loss = functional.cross_entropy(scores.float().flatten(0, -2), self._targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if ON_GPU:
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    def peaks(self, period: int) -> tuple[float, float]:
        """Make a round; return the GiB allocated at the peak of its inner steps, and of all."""
        if not ON_GPU:
            for _ in range(period):
                self.step()
            return 0.0, 0.0
        found = []
        for count in (period - 1, 1):
            torch.cuda.reset_peak_memory_stats()
            for _ in range(count):
                self.step()
            found.append(torch.cuda.max_memory_allocated() / 2**30)
        return found[0], max(found)

    def close(self) -> None:
        if self.name != "plain":
            laconic.undistribute(self.model, self.optimizer)


def measure(names: Sequence[str], task: Task, given: argparse.Namespace) -> None:
    """Measure some contestants beside the plain one, and print their rows."""
    contestants: list[Contestant] = []
    memory: dict[str, tuple[float, float]] = {}
    for name in ("plain", *names):
        before = torch.cuda.memory_allocated() / 2**30 if ON_GPU else 0.0
        made = Contestant(name, task)
        made.peaks(given.period)  # kernels are compiled, and optimizers make their state
        made.peaks(given.period)
        inner, whole = made.peaks(given.period)
        memory[name] = inner - before, whole - before
        contestants.append(made)
    inner_times: dict[str, list[float]] = {made.name: [] for made in contestants}
    round_times: dict[str, list[float]] = {made.name: [] for made in contestants}
    for _ in range(given.blocks):
        for made in contestants:
            times = [made.step() for _ in range(given.period)]
            inner_times[made.name].append(statistics.median(times))
            round_times[made.name].append(sum(times))
    for made in contestants:
        own, plain = inner_times[made.name], inner_times["plain"]
        low, middle, high = statistics.quantiles([a / b for a, b in zip(own, plain, strict=True)], n=4)
        outer = statistics.median(a / b for a, b in zip(round_times[made.name], own, strict=True)) - given.period + 1
        peaks = [f"{mine - base:8.2f}" for mine, base in zip(memory[made.name], memory["plain"], strict=True)]
        print(
            f"{made.name:82} {statistics.median(own):9.2f} {middle:7.3f} {low:6.3f}-{high:6.3f} {outer:7.2f} "
            f"{' '.join(peaks) if ON_GPU else ''}",
            flush=True,
        )
    for made in contestants:
        made.close()
    contestants.clear()
    del made
    gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help="their periods must be --period")
    parser.add_argument("--model", choices=tuple(TASKS), default="gpt" if ON_GPU else "small")
    parser.add_argument("--period", type=int, default=12, help="steps of a round")
    parser.add_argument("--blocks", type=int, default=9, help="rounds of each contestant")
    parser.add_argument("--together", type=int, default=2, help="sentences that are measured beside one plain loop")
    given = parser.parse_args()
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
    if ON_GPU:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", device_id=DEVICE)
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    task, names = TASKS[given.model], given.sentences or sentences(given.period)
    with torch.device("meta"):
        size = sum(p.numel() for p in task.build().parameters())
    where = torch.cuda.get_device_name() if ON_GPU else "CPU"
    print(
        f"{where}, torch {torch.__version__}, {given.model}: {size / 1e6:,.1f} M parameters, rounds of {given.period}"
    )
    headings = f"{'ms':>9} {'inner':>7} {'quartiles':>13} {'outer':>7} {'+GiB':>8} {'+GiB max':>8}"
    print(f"{'':82} {headings}", flush=True)
    for start in range(0, len(names), given.together):
        measure(names[start : start + given.together], task, given)
        if ON_GPU:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
