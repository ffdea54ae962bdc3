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

from laconic.experiments.measure import Line
from laconic.launch.net import ShapedNetworkError
from laconic.launch.net.kernel import require_means
from laconic.report.page.page import write
from laconic.report.page.read_comparison import read_comparison

HERE = Path(__file__).resolve().parent
CHARS = HERE.parent / "examples" / "chars.py"
STEPS, BLOCK = 32, 4  # a block holds one validation and whole periods, so that blocks are alike
OURS = ("bsp", "bsp / power_sgd(rank=4)+ef", "bsp / scaled_sign+ef", "local(4) / scaled_sign+ef")
REAL = ("torch:ddp", "torch:ddp16", "torch:accumulate(steps=4)", *OURS)
VIRTUAL = ("pytorch_ddp", "bsp / cast_bf16", "grad_accumulation(4)", *OURS)
CLOSE = 1.02  # a final loss within 2 % of DDP's counts as level in the conclusion


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
    script = [str(CHARS), str(text), "--batch", "4", "--steps", str(STEPS)]
    script += ["--every", str(BLOCK), "--validate", "2000"]
    code = subprocess.run([*command, *script, *sys.argv[1:]], check=False).returncode
    if code == 0:
        print(f"\n{conclusion(read_comparison(folder).lines)}\nThe page: {write([folder], None)}")
    return code


def conclusion(lines: tuple[Line, ...]) -> str:
    """Say which row has the fastest step among those whose loss after all steps is level with DDP's, and its price."""
    base = lines[0]
    level = [line for line in lines[1:] if _ratio(line.final.get("loss"), 9.9) <= CLOSE]
    if not level:
        return f"No row ends within {100 * (CLOSE - 1):.0f} % of {base.name}'s loss after {STEPS} steps."
    best = min(level, key=lambda line: _ratio(line.step_seconds, 9.9))
    faster, fewer = (1 / _ratio(found, 1.0) for found in (best.step_seconds, best.sent_bytes))
    loss = 100 * (_ratio(best.final.get("loss"), 1.0) - 1)
    if faster < 1.03:
        return f"Nothing is faster than {base.name} here at its loss: on this network it does not pay."
    return (
        f"On 100 Mb/s `{best.name}` makes {faster:.1f} times as many steps a second as {base.name} with {fewer:.0f} "
        f"times fewer bytes, and ends {STEPS} steps with a loss {loss:+.1f} % from its."
    )


def _ratio(quantity: object, otherwise: float) -> float:
    """Return the median ratio to the baseline's number, where it was measured."""
    ratio = getattr(quantity, "ratio", None)
    return otherwise if ratio is None else float(ratio.middle)


if __name__ == "__main__":
    sys.exit(main())
