"""Measure what `import laconic` costs beyond `import torch`, and what the first look at `laconic.distribute` adds.

    python bench/import_time.py

Names of laconic load on first use, so the import alone is cheap and the first use pays; both are shown. The first use
also loads torch's compiler, if nothing has yet; every torch optimizer loads it when it is made, and a script makes one
before it calls `distribute`, so that order is timed too. Each sample is a fresh interpreter, and the kinds alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from rich.console import Console
from rich.progress import track
from rich.table import Table

_CLOCK = "import json, time\nmarks = [time.perf_counter()]\ndef mark(): marks.append(time.perf_counter())\n"
_TELL = "print(json.dumps([b - a for a, b in zip(marks, marks[1:])]))"
_LINES = {
    "torch": "import torch; mark()",
    "optimizer": "torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1); mark()",
    "laconic": "import laconic; mark()",
    "distribute": "laconic.distribute; mark()",
}
AT_ONCE = ("torch", "laconic", "distribute")
AS_USED = ("torch", "optimizer", "laconic", "distribute")


def sample(order: tuple[str, ...]) -> dict[str, float]:
    """Return the seconds that each line took in a fresh interpreter."""
    program = "\n".join([_CLOCK, *(_LINES[name] for name in order), _TELL])
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return dict(zip(order, json.loads(done.stdout), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Import time of laconic beyond torch.")
    parser.add_argument("--rounds", type=int, default=7, help="fresh interpreters of each kind (default 7)")
    rounds = parser.parse_args().rounds
    for order in (AT_ONCE, AS_USED):
        sample(order)  # fills the file cache and writes bytecode
    pairs = [(sample(AT_ONCE), sample(AS_USED)) for _ in track(range(rounds), "fresh interpreters")]
    made = Table(title=f"Seconds, {rounds} fresh interpreters of each kind")
    for heading in ("", "median", "min–max"):
        made.add_column(heading, justify="right" if heading else "left")
    for name, seconds in {
        "import torch": [first["torch"] for first, _ in pairs],
        "import laconic, after torch": [first["laconic"] for first, _ in pairs],
        "then laconic.distribute": [first["distribute"] for first, _ in pairs],
        "make a torch optimizer, after torch": [second["optimizer"] for _, second in pairs],
        "then import laconic and laconic.distribute": [s["laconic"] + s["distribute"] for _, s in pairs],
    }.items():
        made.add_row(name, f"{statistics.median(seconds):.3f}", f"{min(seconds):.3f}–{max(seconds):.3f}")
    Console().print(made)


if __name__ == "__main__":
    main()
