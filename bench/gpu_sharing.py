"""Sharing one GPU, measured beside what the cluster models predict.

    python bench/gpu_sharing.py --output gpu_sharing.jsonl [--only slices --only mps ...] [--minutes 3]
    python bench/gpu_sharing.py --device cpu --small          # proves that it runs, measures nothing

- `switch`: a residual net of 152 layers starts from pinned memory, in groups, whole and by layers; standby processes.
- `fused`: trials that train as one, against trials one after another and processes side by side.
- `slices`: two and four trainings in processes of their own, by the driver's time slices.
- `turns`: two trainings in one process, whose iterations are the slices (Salus's policy decides).
- `mps`: the processes of `slices` under MPS, where its daemon starts; with caps of 25, 50 and 75 %.

Every figure is a median with quartiles over repetitions; `of_alone` is the steps a second over those of the same
training by itself, and `together` the sum of these.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

SECTIONS = ("switch", "fused", "slices", "turns", "mps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SECTIONS, help="measure this section; may be repeated")
    parser.add_argument("--output", type=Path, help="append rows of JSON to this file")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes and windows")
    parser.add_argument("--seconds", type=float, default=0.4, help="of a window in which steps are counted")
    parser.add_argument("--repeats", type=int, default=5, help="windows")
    parser.add_argument("--minutes", type=float, default=4.0, help="begin nothing that would end later")
    given = parser.parse_args()

    import torch
    from bench.sharing.fused import fused
    from bench.sharing.rows import Rows
    from bench.sharing.side_by_side import Measured, slices, under_mps
    from bench.sharing.switch import switch
    from bench.sharing.turns import turns

    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu --small proves that the script runs")
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    common = {"device": name, "torch": torch.__version__, "small": given.small, "at": time.strftime("%Y-%m-%d %H:%M")}
    rows = Rows(given.output, common, given.minutes)
    print(f"{name}, torch {torch.__version__}", flush=True)
    seconds = 0.05 if given.small else given.seconds
    repeats = 2 if given.small else given.repeats
    known = Measured()
    sections: dict[str, Callable[[], None]] = {
        "switch": lambda: switch(rows, given.device, given.small, repeats),
        "fused": lambda: fused(rows, given.device, given.small, seconds, repeats),
        "slices": lambda: slices(rows, given.device, given.small, seconds, repeats, known),
        "turns": lambda: turns(rows, given.device, given.small, seconds, repeats),
        "mps": lambda: under_mps(rows, given.device, given.small, seconds, repeats, known),
    }
    for section, measured in sections.items():
        if given.only and section not in given.only:
            continue
        begin = time.monotonic()
        try:
            if rows.time_for(section, "all", 10 if not given.small else 0):
                measured()
        except Exception as error:
            traceback.print_exc()
            rows.add(section, case="failed", why=f"{type(error).__name__}: {str(error)[:500]}")
        rows.add(section, case="took", seconds=time.monotonic() - begin)
        gc.collect()
        if given.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
