"""`make demo`: a comparison in a few minutes, on whatever this machine allows.

Four workers train the character transformer (0.8 M parameters) over links of 100 Mb/s: in network namespaces where that
is possible (Linux, root, iproute2), else virtually. The text is the project's Shakespeare if it is there, else the
example's own source: what is learned matters less here than what is said.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from laconic.launch.net import ShapedNetworkError
from laconic.launch.net.kernel import require_means

HERE = Path(__file__).resolve().parent
CHARS = HERE.parent / "examples" / "chars.py"
STEPS, BLOCK = 24, 4
REAL = ("torch:ddp", "bsp", "bsp / cast_bf16", "bsp / cast_bf16+ef", "torch:ddp16", "torch:accumulate(steps=2)")
VIRTUAL = ("pytorch_ddp", "bsp / none / sequential", "bsp / cast_bf16", "bsp / cast_bf16+ef")


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
    command = [sys.executable, "-m", "laconic", "compare", "--quick", "--workers", "4", *where]
    command += [part for row in rows for part in ("--strategy", row)]
    command += ["--block-steps", str(BLOCK), "--target", "loss=3.35"]
    # Every block holds one validation, so that blocks are alike.
    script = [str(CHARS), str(text), "--batch", "4", "--steps", str(STEPS)]
    script += ["--every", str(BLOCK), "--validate", "2000"]
    return subprocess.run([*command, *script, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
