"""What a sentence adds to a training step on one GPU: time over DDP's, kernel launches, and waits of the host.

    python bench/gpu_step.py [--model gpt|large|conv] [--compile] [--blocks 7] [SENTENCE ...]
    python bench/gpu_step.py --workers 8 --link 100gbit

One NCCL rank, so that nothing travels: what is left is encoding, decoding and Python. With `--workers`, sentences
decode the payloads of so many workers, and their messages hold a part of the GPU for as long as a link would (see
emulated_gpu.py), which is the column `wire`; DDP beside them stays alone.

All contestants train the same model in one process, in turns: in each block every one makes a few steps, and the row
shows the median over blocks of its time over DDP's in the same block, with the quartiles. Launches and waits are
counted by torch's profiler.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.runtime.current_worker import set_process_worker
from laconic.units import bits_per_second

SENTENCES = (
    "bsp",
    "bsp / cast_bf16",
    "bsp / int8+two_hop",
    "bsp / mx_block_codecs(mxfp8)+two_hop",
    "bsp / power_sgd(32)+ef",
    "bsp / power_sgd(4)+ef",
    "bsp / scaled_sign+ef",
    "bsp / qsgd+ef",
    "bsp / topk(0.01, threshold=sampled)+ef",
    "bsp / topk(0.01)+ef",
)
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaGraphLaunch")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


class Block(nn.Module):
    """A transformer's block: attention and a feed-forward net, each behind a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_net = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        queries, keys, values = (
            self.project_in(self.before_attention(x))
            .view(rows, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.project_out(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.net(self.before_net(x))


class Transformer(nn.Module):
    """A decoder in the shape of GPT-2."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 50304, context: int = 1024) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


class Residual(nn.Module):
    """A bottleneck of three convolutions with group normalisation."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.GroupNorm(8, inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, padding=1, bias=False),
            nn.GroupNorm(8, inner),
            nn.ReLU(),
            nn.Conv2d(inner, channels, 1, bias=False),
            nn.GroupNorm(8, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.layers(x))


def convolutions() -> nn.Module:
    """Return a convolutional net of many small tensors (48 bottlenecks, 437 tensors, 11 M parameters)."""
    return nn.Sequential(
        nn.Conv2d(3, 256, 3, padding=1, bias=False),
        nn.GroupNorm(8, 256),
        *[Residual(256, 96) for _ in range(48)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 1000),
    )


@dataclass(frozen=True)
class Task:
    """A model, what it is fed, and how many contestants fit into memory beside DDP."""

    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    together: int


def tokens(rows: int) -> tuple[Tensor, Tensor]:
    """Return rows of 1,024 tokens, each its own target."""
    drawn = torch.randint(50304, (rows, 1024), device="cuda")
    return drawn, drawn.flatten()


def tasks(rows: int) -> dict[str, Task]:
    """Return the models by name."""
    return {
        "gpt": Task(lambda: Transformer(12, 768, 12), lambda: tokens(rows), 5),
        "large": Task(lambda: Transformer(24, 2048, 16), lambda: tokens(rows), 2),
        "conv": Task(
            convolutions,
            lambda: (torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(1000, (32,), device="cuda")),
            11,
        ),
    }


class Contestant:
    """One way to train the task's model: plainly, under DDP or by a sentence."""

    def __init__(self, name: str, task: Task, compiled: bool) -> None:
        torch.manual_seed(0)
        self.name, self._task = name, task
        with torch.device("cuda"):
            self.module = task.build()
        self.optimizer: Any = torch.optim.AdamW(self.module.parameters(), 1e-4, fused=True)
        self._model: Callable[[Tensor], Tensor] = self.module
        if name == "ddp":
            self._model = nn.parallel.DistributedDataParallel(self.module, device_ids=[0])
        elif name != "plain":
            self._model, self.optimizer = laconic.distribute(self.module, self.optimizer, name)
        if compiled:
            self._model = torch.compile(self._model)
        self._inputs, self._targets = task.batch()

    def steps(self, count: int) -> float:
        """Make some steps; return the milliseconds of one."""
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            with torch.autocast("cuda", torch.bfloat16):
                scores = self._model(self._inputs)
                loss = functional.cross_entropy(scores.float().flatten(0, -2), self._targets)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count * 1e3

    def counts(self, count: int = 1) -> tuple[float, float]:
        """Return kernel launches and waits of the host in a step."""
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            self.steps(count)
        seen = {event.key: event.count for event in profile.key_averages()}
        launches, waits = (sum(seen.get(name, 0) for name in names) / count for names in (LAUNCHES, WAITS))
        return launches, waits - 3 / count  # two are the benchmark's own, one is the profiler's

    def close(self) -> None:
        if self.name not in ("plain", "ddp"):
            laconic.undistribute(self.module, self.optimizer)


def groups(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Split the names into groups that are measured side by side."""
    for start in range(0, len(names), size):
        yield names[start : start + size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", nargs="*", default=SENTENCES, metavar="SENTENCE")
    parser.add_argument("--model", choices=("gpt", "large", "conv"), default="gpt")
    parser.add_argument("--rows", type=int, default=8, help="rows of 1,024 tokens in a batch")
    parser.add_argument("--compile", action="store_true", help="train torch.compile of each model")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps of each contestant in a block")
    parser.add_argument("--workers", type=int, default=1, help="how many workers' payloads a sentence decodes")
    parser.add_argument("--link", default="100gbit", help="each worker's link, where there are several")
    given = parser.parse_args()
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    task = tasks(given.rows)[given.model]
    worker = None
    if given.workers > 1:
        from emulated_gpu import EmulatedWorker

        worker = EmulatedWorker(given.workers, bits_per_second(given.link))
        set_process_worker(worker)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.model}{', compiled' * given.compile}")
    columns = f"{'launches':>9} {'waits':>6} {'GiB':>6} {'wire':>6}"
    print(f"{'':42} {'ms':>8} {'of ddp':>7} {'quartiles':>13} {columns}", flush=True)
    for names in groups(["plain", *given.sentences], task.together):
        measure(["ddp", *names], task, given, lambda: 0.0 if worker is None else 1e3 * worker.held_seconds())


def measure(names: Sequence[str], task: Task, given: argparse.Namespace, held: Callable[[], float]) -> None:
    """Measure some contestants side by side and print their rows; `held` returns the milliseconds for which messages
    have held the GPU so far."""
    contestants: list[Contestant] = []
    made: Contestant | None
    memory: dict[str, float] = {}
    for name in names:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            made = Contestant(name, task, given.compile)
            made.steps(8)
        except Exception as error:
            print(f"{name:42} failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        memory[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
        contestants.append(made)
    times: dict[str, list[float]] = {made.name: [] for made in contestants}
    for _ in range(given.blocks):
        for made in contestants:
            times[made.name].append(made.steps(given.steps))
    for made in contestants:
        ratios = [own / ddp for own, ddp in zip(times[made.name], times["ddp"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        before = held()
        launches, waits = made.counts()
        print(
            f"{made.name:42} {statistics.median(times[made.name]):8.2f} {middle:7.3f} {low:6.3f}-{high:6.3f} "
            f"{launches:9.0f} {waits:6.1f} {memory[made.name]:6.1f} {held() - before:6.1f}",
            flush=True,
        )
    for made in contestants:
        made.close()
    contestants.clear()
    made = None
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
