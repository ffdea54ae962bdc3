"""`make demo`: what the library gains on a slow network, in a few minutes, with whatever this machine allows.

Four workers train the character transformer (0.8 M parameters) over links of 100 Mb/s, in network namespaces where that
is possible (Linux, root, iproute2) and virtually elsewhere: torch's DDP in 32 and 16 bits, gradient accumulation at a
quarter of the bytes, and sentences of this library. The table is printed, the page is written, and one sentence sums
up the result. One seed, no tuning: a demonstration, not a result (`bench/README.md` has those). The text is
Shakespeare's where LACONIC_DATA has it, else the example's own source: what is learned matters less here than what is
sent.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from laconic.launch.net import ShapedNetworkError
from laconic.launch.net.kernel import require_means
from laconic.planner.autotune import PAYS
from laconic.report.page.page import write
from laconic.report.page.read_comparison import read_comparison
from laconic.report.page.values import Compared

HERE = Path(__file__).resolve().parent
CHARS = HERE.parent / "examples" / "chars.py"
STEPS, BLOCK = 40, 4  # a block holds one validation and whole periods, so that blocks are alike
OURS = ("bsp", "bsp / power_sgd(rank=4)+ef", "local(4) / scaled_sign+ef")
REAL = ("torch:ddp", "torch:ddp16", "torch:accumulate(steps=4)", *OURS)
VIRTUAL = ("pytorch_ddp", "bsp / cast_bf16", "grad_accumulation(4)", *OURS)


def main() -> int:
    sys.path.insert(0, str(CHARS.parent))
    from chars import default_text

    text = default_text() if default_text().is_file() else CHARS
    try:
        require_means()
        where, rows = ["--rate", "100Mbit"], REAL
    except ShapedNetworkError as error:
        print(f"laconic: {error}\nlaconic: so this demo is virtual", file=sys.stderr)
        where, rows = ["--engine", "virtual", "--network", str(HERE / "demo.toml")], VIRTUAL
    folder = Path(tempfile.mkdtemp(prefix="laconic-demo-")) / "comparison"
    command = [sys.executable, "-m", "laconic", "compare", "--quick", "--workers", "4", *where]
    command += [part for row in rows for part in ("--strategy", row)]
    command += ["--block-steps", str(BLOCK), "--folder", str(folder)]
    # few tokens a step, so that four workers on two cores compute for a shorter time than they communicate
    script = [str(CHARS), str(text), "--batch", "2", "--context", "32", "--steps", str(STEPS)]
    script += ["--every", str(BLOCK), "--validate", "2000"]
    code = subprocess.run([*command, *script, *sys.argv[1:]], check=False).returncode
    if code == 0:
        print(f"\n{conclusion(read_comparison(folder))}\nThe page: {write([folder], None)}")
    return code


def conclusion(found: Compared) -> str:
    """Say which row first had the loss that every row reaches in the end, and how much sooner than DDP that was."""
    names = [line.name for line in found.lines]
    runs = [outcomes[0] for outcomes in found.runs]
    common = max(run.final("loss") or 0.0 for run in runs)
    seconds = [at.seconds if (at := run.reach("loss", common, falls=True)) else float("inf") for run in runs]
    best = min(range(len(runs)), key=seconds.__getitem__)
    if seconds[best] * PAYS > seconds[0]:
        return f"No row has the loss {common:.2f} sooner than {names[0]}: on this network and machine nothing pays."
    sent = [line.sent_bytes.value.middle if line.sent_bytes else 0.0 for line in found.lines]
    sooner, fewer = seconds[0] / seconds[best], sent[0] / sent[best]
    return (
        f"On 100 Mb/s `{names[best]}` has the loss {common:.2f}, which all rows reach, after {seconds[best]:.1f} s; "
        f"{names[0]} takes {seconds[0]:.1f} s. That is {sooner:.1f} times sooner, with {fewer:.0f} times fewer bytes "
        "a step."
    )


if __name__ == "__main__":
    sys.exit(main())
