"""What a sentence adds to a step of N virtual workers: time over N plain models that are trained one after the other.

    python bench/virtual_step.py [--workers 8] [--blocks 7] [SENTENCE ...]
    python bench/virtual_step.py --small --rows 4 --length 32

Virtual workers compute in one process, one at a time: what N of them take beyond N plain models is encoding, decoding,
copies and Python (on a CPU equal workers share one optimizer step, which takes less). All contestants train the same
transformer (26 M parameters) side by side: in each block every one makes a few steps of all N workers, and the row
shows the median over blocks of its time over the plain workers' in the same block, with the quartiles. It runs on the
GPU where there is one (kernel launches and waits of the host of a worker's step are counted by torch's profiler), and
else on the CPU (operations of torch).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import laconic
from gpu_step import LAUNCHES, WAITS, Transformer
from laconic.runtime.current_worker import current

SENTENCES = (
    "bsp",
    "bsp / cast_bf16",
    "bsp / int8+two_hop",
    "bsp / power_sgd(4)+ef",
    "bsp / scaled_sign+ef",
    "bsp / qsgd+ef",
    "bsp / topk(0.01, threshold=sampled)+ef",
    "bsp / topk(0.01)+ef",
)
LAYERS, WIDTH, HEADS, VOCABULARY = 6, 512, 8, 7168
SMALL = 2, 128, 4, 512


class Training:
    """One model with its optimizer and its batch, as one worker trains it."""

    def __init__(self, given: argparse.Namespace, device: str, sentence: str | None) -> None:
        layers, width, heads, vocabulary = SMALL if given.small else (LAYERS, WIDTH, HEADS, VOCABULARY)
        torch.manual_seed(0)
        with torch.device(device):
            self.module: nn.Module = Transformer(layers, width, heads, vocabulary, given.length)
        self.optimizer: Any = torch.optim.AdamW(self.module.parameters(), 1e-4, fused=device == "cuda")
        self.model: Callable[[Tensor], Tensor] = self.module
        if sentence is not None:
            self.model, self.optimizer = laconic.distribute(self.module, self.optimizer, sentence)
        self._device = device
        self._tokens = torch.randint(vocabulary, (given.rows, given.length), device=device)

    def step(self) -> None:
        with torch.autocast(self._device, torch.bfloat16, enabled=self._device == "cuda"):
            scores = self.model(self._tokens)
            loss = functional.cross_entropy(scores.float().flatten(0, -2), self._tokens.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Operations(TorchDispatchMode):
    """Counts the operations of torch of one thread that compute something."""

    VIEWS = (
        "view",
        "detach",
        "as_strided",
        "split",
        "t.",
        "transpose",
        "expand",
        "slice",
        "select",
        "alias",
        "permute",
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.name().removeprefix("aten::").startswith(self.VIEWS)
        return func(*args, **(kwargs or {}))


class Contest:
    """The contestants of all workers; the first one keeps the time."""

    def __init__(self, names: Sequence[str], given: argparse.Namespace, device: str) -> None:
        self.names, self._given, self._device = names, given, device
        self.milliseconds: dict[str, list[float]] = {name: [] for name in names}
        self.counts: dict[str, tuple[float, float]] = {}
        self._counted: dict[str, int] = dict.fromkeys(names, 0)

    def run(self) -> None:
        """Take part as one worker. The plain workers are all trained by the first one, while the others wait."""
        worker = current()
        assert worker is not None
        first = worker.rank == 0
        trainings: dict[str, list[Training]] = {
            name: [
                Training(self._given, self._device, None if name == "plain" else name)
                for _ in range((worker.size if first else 0) if name == "plain" else 1)
            ]
            for name in self.names
        }

        def steps(name: str, count: int) -> float:
            worker.world.barrier().wait()
            if first:
                self._synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                for training in trainings[name]:
                    training.step()
            worker.world.barrier().wait()
            if first:
                self._synchronize()
            return (time.perf_counter() - begin) / count * 1e3

        for name in self.names:
            steps(name, 6)
        for _ in range(self._given.blocks):
            for name in self.names:
                taken = steps(name, self._given.steps)
                if first:
                    self.milliseconds[name].append(taken)
        for name in self.names:
            self._count(name, lambda name=name: steps(name, 2), first, 2 * worker.size)

    def _count(self, name: str, act: Callable[[], Any], first: bool, steps: int) -> None:
        """Count what two steps of all workers take, and keep it by worker and step."""
        if self._device == "cpu":
            with Operations() as operations:
                act()
            self._counted[name] += operations.count
            self.counts[name] = self._counted[name] / steps, 0.0
            return
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        profiling: AbstractContextManager[Any] = nullcontext()
        if first:
            profiling = torch.profiler.profile(activities=activities, acc_events=True)
        with profiling as profile:
            act()
        if first:
            seen = {event.key: event.count for event in profile.key_averages()}
            launches, waits = (sum(seen.get(key, 0) for key in keys) for keys in (LAUNCHES, WAITS))
            self.counts[name] = launches / steps, (waits - 2) / steps  # the benchmark waits twice itself

    def _synchronize(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def show(self) -> None:
        for name in self.names:
            pairs = zip(self.milliseconds[name], self.milliseconds["plain"], strict=True)
            low, middle, high = statistics.quantiles([own / plain for own, plain in pairs], n=4)
            launches, waits = self.counts[name]
            print(
                f"{name:42} {statistics.median(self.milliseconds[name]):8.1f} {middle:8.3f} {low:6.3f}-{high:6.3f} "
                f"{launches:9.0f} {waits:6.1f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", nargs="*", default=SENTENCES, metavar="SENTENCE")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="steps of each contestant in a block")
    parser.add_argument("--rows", type=int, default=8, help="rows of a worker's batch")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--together", type=int, default=4, help="contestants that share the memory at a time")
    parser.add_argument("--small", action="store_true", help="a model of 0.6 M parameters, to try the benchmark")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shown = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    numel = sum(p.numel() for p in Training(given, "cpu", None).module.parameters())
    print(f"{shown}, torch {torch.__version__}, {given.workers} workers, {numel / 1e6:.1f} M parameters")
    counted = "launches" if device == "cuda" else "ops"
    if device == "cuda":  # the profiler is made ready by the main thread, or waits for it for ever
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            torch.ones(1, device="cuda")
    print(f"{'':42} {'ms':>8} {'of plain':>8} {'quartiles':>13} {counted:>9} {'waits':>6}", flush=True)
    for start in range(0, len(given.sentences), given.together):
        contest = Contest(["plain", *given.sentences[start : start + given.together]], given, device)
        laconic.simulate(contest.run, given.workers)
        contest.show()


if __name__ == "__main__":
    main()
