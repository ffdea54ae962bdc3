"""A whole training script on virtual workers: afresh in each, as if each were a process of its own.

Imported modules are shared (they are loaded once); the script itself runs anew in each worker with its own `__main__`,
arguments, random states and output. Rank 0 speaks on the console; the others write to the run folder's logs.
"""

from __future__ import annotations

import io
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from laconic.engine.connect import rank
from laconic.engine.virtual.compute import Compute, Straggling
from laconic.engine.virtual.network import Network
from laconic.engine.virtual.simulate import Simulated, simulate
from laconic.engine.virtual.units import bits_per_second, seconds
from laconic.errors import LaconicError


@dataclass(frozen=True)
class Setting:
    """A network and how fast its workers compute: what a file describes."""

    network: Network
    compute: Compute

    @classmethod
    def read(cls, text: str, workers: int) -> Setting:
        """A TOML file, or just a rate such as "1gbit": one switch, 50 µs, and computing that takes no time."""
        if not text.endswith(".toml"):
            return cls(Network.flat(workers, bits_per_second(text), 50e-6), Compute())
        path = Path(text)
        if not path.is_file():
            raise LaconicError(f'there is no network file {text}: give a .toml file, or a rate such as "1gbit"')
        try:
            table = tomllib.loads(path.read_text())
            return cls(Network.read(workers, table["network"]), _compute(table.get("compute", {})))
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise LaconicError(f"{text} does not describe a network ({error}): see docs/virtual.md") from error


def _compute(table: Mapping[str, Any]) -> Compute:
    straggling = table.get("straggling")
    return Compute(
        forward_seconds=seconds(table.get("forward", 0)),
        backward_seconds=seconds(table.get("backward", 0)),
        step_seconds=seconds(table.get("step", 0)),
        slowness=tuple(map(float, table.get("slowness", (1.0,)))),
        straggling=None if straggling is None else Straggling(straggling["probability"], straggling["factor"]),
        trace=tuple(tuple(map(float, row)) for row in table.get("trace", ())),
        seed=int(table.get("seed", 0)),
    )


def run_script(
    script: Path,
    arguments: tuple[str, ...],
    workers: int,
    setting: Setting,
    logs: Path | None,
    seed: int = 0,
    threads: int = 1,
) -> Simulated:
    """Run it; raises what the script raises, in whichever worker."""
    code = compile(script.read_text(encoding="utf-8"), str(script), "exec")
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)

    def body() -> None:
        main = ModuleType("__main__")
        main.__dict__.update(__file__=str(script), __builtins__=__builtins__)
        sys.modules["__main__"] = main
        sys.argv = [str(script), *arguments]
        _ending_quietly(lambda: _with_output(logs, lambda: exec(code, main.__dict__)))

    sys.path.insert(0, str(script.parent))
    try:
        return simulate(body, workers, setting.network, setting.compute, seed, threads)
    finally:
        sys.path.remove(str(script.parent))


def _with_output(logs: Path | None, act: Callable[[], None]) -> None:
    """Only rank 0 speaks here; what others say is kept until they end, since a thousand open files are too many."""
    if rank() == 0:
        act()
        return
    said = sys.stdout = io.StringIO()
    try:
        act()
    finally:
        if logs is not None and said.getvalue():
            (logs / f"rank-{rank()}.log").write_text(said.getvalue())


def _ending_quietly(act: Callable[[], None]) -> None:
    """`sys.exit()` or `sys.exit(0)` ends a worker, as it ends a process; anything else is an error."""
    try:
        act()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise LaconicError(f"the script ended with {end.code!r} on rank {rank()}") from end
