"""A whole training script on virtual workers: each runs it as if it were a process of its own.

Imported modules are shared (they are loaded once); the script itself runs anew in each worker with its own `__main__`,
arguments, random states and output. Rank 0 prints on the console; the others write to the run folder's logs.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from torch.optim.optimizer import register_optimizer_step_pre_hook

from laconic.errors import LaconicError
from laconic.runtime import undistributed
from laconic.runtime.current_worker import rank
from laconic.virtual.setup import VirtualSetup
from laconic.virtual.simulate import Simulated, simulate


def run_script(
    script: Path,
    arguments: tuple[str, ...],
    workers: int,
    setup: VirtualSetup,
    logs: Path | None,
    seed: int = 0,
    threads: int = 1,
    timeline: bool = False,
    restarts: int = 0,
    heartbeat_seconds: float = 20.0,
    servers: int = 0,
) -> Simulated:
    """Run the script on all virtual workers; raise what it raises in any of them."""
    code = compile(script.read_text(encoding="utf-8"), str(script), "exec")
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)

    def body() -> None:
        main = ModuleType("__main__")
        main.__dict__.update(__file__=str(script), __builtins__=__builtins__)
        sys.modules["__main__"] = main
        sys.argv = [str(script), *arguments]
        _allowing_exit(lambda: _with_output(logs, lambda: exec(code, main.__dict__)))
        undistributed.at_end()

    undistributed.forget_all()
    steps = register_optimizer_step_pre_hook(undistributed.before_step)
    sys.path.insert(0, str(script.parent))
    try:
        return simulate(
            body,
            workers,
            setup.network,
            setup.compute,
            seed,
            threads,
            timeline,
            setup.events,
            restarts,
            heartbeat_seconds,
            servers,
        )
    finally:
        steps.remove()
        sys.path.remove(str(script.parent))


def _with_output(logs: Path | None, act: Callable[[], None]) -> None:
    """Let rank 0 print here; keep other ranks' output until they end, since a thousand open files are too many."""
    if rank() == 0:
        act()
        return
    output = sys.stdout = io.StringIO()
    try:
        act()
    finally:
        if logs is not None and output.getvalue():
            (logs / f"rank-{rank()}.log").write_text(output.getvalue())


def _allowing_exit(act: Callable[[], None]) -> None:
    """`sys.exit()` or `sys.exit(0)` ends a worker, as it ends a process; anything else is an error."""
    try:
        act()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise LaconicError(f"the script ended with {end.code!r} on rank {rank()}") from end
