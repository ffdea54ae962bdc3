"""Pipelines of four processes on shaped networks: the time of a step beside its price.

    python bench/pipelines.py                       # 100 Mb/s and 1 Gb/s; needs root, `ip` and `tc`
    python bench/pipelines.py --repeats 15 --rates 1e8

Computing is emulated by waits, so that four workers on fewer cores do not slow each other down. Schedules take turns in
one run of the processes; the median of the repeats is shown, of the slowest rank each time. Prices come from the waits
and the rates of the links, less what TCP and IP add to each packet; nothing is fitted. Beside them: what AQ-SGD at 4
bits takes, after its first epoch, where messages take several times as long as computing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from cases_on_links import beside_prices, measured_on_links, take_turns  # noqa: E402
from workers import PAYLOAD_SHARE  # noqa: E402

WORKERS, MICROBATCHES, SAMPLES = 4, 8, 4
SCHEDULES = ("gpipe", "one_f_one_b", "interleaved_1f1b")
FORWARD, BACKWARD, WIDTH = 0.040, 0.080, 65_536 // SAMPLES
"""Seconds of a microbatch in the whole model, and the elements of a sample between stages: 256 KiB a microbatch."""
QUICK_FORWARD, QUICK_BACKWARD = 0.010, 0.020
"""The same where AQ-SGD is tried: messages of 100 Mb/s then take several times as long as computing."""


def cases() -> dict[str, tuple[str, float, float, bool]]:
    """Return what is tried: a schedule, the seconds of the whole model, and whether messages are compressed."""
    found = {name: (name, FORWARD, BACKWARD, False) for name in SCHEDULES}
    found["1F1B, 32 bits"] = ("one_f_one_b", QUICK_FORWARD, QUICK_BACKWARD, False)
    found["1F1B, AQ-SGD at 4 bits"] = ("one_f_one_b", QUICK_FORWARD, QUICK_BACKWARD, True)
    return found


def costs_of(stages: int, forward: float, backward: float, nbytes: float) -> Any:
    from laconic.parallel.pipeline.costs import StageCosts

    return StageCosts.equal(stages, forward / stages, backward / stages, nbytes)


# ------------------------------------------------------------------------------------------------ in a worker


def work(todo: dict[str, Any]) -> None:
    import torch
    from torch import nn

    from laconic.parallel.pipeline.aq_sgd import AqSgd
    from laconic.parallel.pipeline.execute import PipelineDevice
    from laconic.parallel.pipeline.schedule import named
    from laconic.real.connect import connect

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, forward: float, backward: float) -> Any:
            ctx.backward_seconds = backward
            time.sleep(forward)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(ctx.backward_seconds)
            return gradient, None, None

    class Part(nn.Module):
        def __init__(self, forward: float, backward: float) -> None:
            super().__init__()
            self.scale, self.seconds = nn.Parameter(torch.ones(1)), (forward, backward)

        def forward(self, x: Any) -> Any:
            return Waits.apply(x, *self.seconds) * self.scale

    worker = connect()
    devices = {}
    for name, (word, forward, backward, coded) in cases().items():
        pipeline = named(word).pipeline(WORKERS, MICROBATCHES)
        modules = {
            s: Part(forward / pipeline.stages, backward / pipeline.stages) for s in pipeline.stages_of(worker.rank)
        }
        codes = AqSgd(4, 4).codes(pipeline.stages, worker.rank) if coded else {}
        optimizers = {s: torch.optim.SGD(module.parameters(), 1e-6) for s, module in modules.items()}
        devices[name] = PipelineDevice(pipeline, modules, optimizers, nn.functional.mse_loss, worker, codes=codes)
    x = torch.randn(SAMPLES * MICROBATCHES, WIDTH)

    def stepping(device: PipelineDevice) -> Callable[[], object]:
        return lambda: device.step(x, x, list(range(len(x))))

    take_turns(worker, {name: stepping(device) for name, device in devices.items()}, todo["repeats"])


# ------------------------------------------------------------------------------------------------ measurement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e8, 1e9], help="bits a second of each worker")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_worker:
        work(json.loads(given.as_worker))
        return
    import torch

    from laconic.network.network_tree import Network
    from laconic.parallel.pipeline.aq_sgd import message_bytes
    from laconic.parallel.pipeline.schedule import named
    from laconic.parallel.pipeline.timeline import timeline

    whole = 4.0 * SAMPLES * WIDTH
    few = float(SAMPLES * message_bytes(torch.Size([WIDTH]), 4))
    for rate in given.rates:
        found = measured_on_links(__file__, WORKERS, rate, given.repeats)
        prices = []
        for name, (word, forward, backward, coded) in cases().items():
            pipeline = named(word).pipeline(WORKERS, MICROBATCHES)
            costs = costs_of(pipeline.stages, forward, backward, few if coded else whole)
            prices.append((name, timeline(pipeline, costs, Network.flat(WORKERS, rate * PAYLOAD_SHARE)).seconds))
        title = f"{WORKERS} stages at {rate / 1e6:g} Mb/s, {MICROBATCHES} microbatches of {whole / 1e3:.0f} kB"
        console = Console(width=max(120, Console().width))
        console.print(beside_prices(found, prices, title))
        plain, coded_steps = (
            statistics.median(spent for spent, _ in found[name]) for name in ("1F1B, 32 bits", "1F1B, AQ-SGD at 4 bits")
        )
        gain = plain / coded_steps
        console.print(f"AQ-SGD at 4 bits is {gain:.2f} times as fast as 32 bits.", highlight=False)


if __name__ == "__main__":
    main()
