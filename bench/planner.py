"""Measure the planner's speed: strategies priced a second on one core, ten thousand GPUs, the command on the examples.

    python bench/planner.py                # about two minutes
    python bench/planner.py --quick        # without the examples

Prices share what strategies have in common (a compressor's payloads, a schedule's plan, a network's times), and making
that is part of the time. `auto`, which searches for its plan, is timed separately.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from laconic.planner.advise import advise
from laconic.planner.candidates import candidates
from laconic.planner.codec_times import codecs_on
from laconic.planner.deployment import Deployment
from laconic.planner.networks import links_of
from laconic.planner.preferences import Preferences
from laconic.planner.price import Pricer
from laconic.profile.gpus import gpu, profile_of

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TRIALS = 5


def deployment(model: str, workers: int, rate: str, chip: str = "a100") -> Deployment:
    kind = gpu(chip)
    links = links_of(rate, workers, kind)
    return Deployment(profile_of(model, kind), links.network, workers, codecs=codecs_on(kind))


def timed(act: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def rate_of(model: str) -> float:
    """Return the strategies that are priced a second, with empty caches."""
    made = deployment(model, 64, "25gbit")
    asked = [s for s in candidates(made) if "auto" not in str(s)]

    def every() -> None:
        pricer = Pricer(made)
        for strategy in asked:
            pricer.price(strategy)

    return len(asked) / statistics.median(timed(every) for _ in range(TRIALS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the examples")
    args = parser.parse_args()
    for model in ("resnet50", "bert-large", "gpt2-xl"):
        print(f"{model}: {rate_of(model):,.0f} strategies a second (median of {TRIALS})", flush=True)
    whole = [timed(lambda: Pricer(deployment("bert-large", 10_000, "100gbit")).price("bsp")) for _ in range(TRIALS)]
    print(f"10,000 GPUs, one all-reduce job: {statistics.median(whole):.3f} s", flush=True)
    every = timed(lambda: advise(deployment("bert-large", 10_000, "100gbit"), "bert-large", "100gbit", Preferences()))
    print(f"10,000 GPUs, all candidates and advice: {every:.1f} s", flush=True)
    if args.quick:
        return
    with tempfile.TemporaryDirectory() as cache:
        own = {**os.environ, "XDG_CACHE_HOME": cache}
        for name, more in (("digits.py", ()), ("chars.py", (str(EXAMPLES.parent / "README.md"),))):
            command = [sys.executable, "-m", "laconic", "plan", "--workers", "8", str(EXAMPLES / name), *more]
            for what in ("first time", "again, from the cache"):
                seconds = timed(partial(subprocess.run, command, env=own, check=True, capture_output=True))
                print(f"laconic plan {name}, {what}: {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
