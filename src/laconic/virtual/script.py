"""A whole training script on virtual workers: each runs it as if it were a process of its own.

Imported modules are shared (they are loaded once); the script itself runs anew in each worker with its own `__main__`,
arguments, random states and output. Rank 0 prints on the console; the others write to the run folder's logs.
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

from torch.optim.optimizer import register_optimizer_step_pre_hook

from laconic.errors import LaconicError
from laconic.network.network_tree import Network
from laconic.runtime import undistributed
from laconic.runtime.current_worker import rank
from laconic.units import bits_per_second, seconds
from laconic.values.profile import Profile
from laconic.virtual.compute import Compute, Stragglers
from laconic.virtual.membership import Event, read_events
from laconic.virtual.simulate import Simulated, simulate

DEFAULT_NETWORK = "1Gbit"


@dataclass(frozen=True)
class VirtualSetup:
    """What a network file describes: a network, how fast its workers compute, and when workers join, leave and die."""

    network: Network
    compute: Compute
    events: tuple[Event, ...] = ()

    @classmethod
    def read(cls, text: str | None, workers: int, profile_path: str | None = None) -> VirtualSetup:
        """Read a TOML file, or just a rate such as "1gbit" (the default).

        A rate means one switch with a latency of 50 µs, and computing that takes no time. A profile gives the times of
        computing and, where no network is given, those of its links.
        """
        profile = None if profile_path is None else Profile.read(profile_path)
        if profile is not None:
            given = cls.read(text, workers)
            measured = profile.links is not None and text is None
            network = Network.from_profile(profile, workers) if measured else given.network
            return cls(network, given.compute.as_measured(profile), given.events)
        text = text or DEFAULT_NETWORK
        if not text.endswith(".toml"):
            return cls(Network.flat(workers, bits_per_second(text), 50e-6), Compute())
        path = Path(text)
        if not path.is_file():
            raise LaconicError(f'there is no network file {text}: give a .toml file, or a rate such as "1gbit"')
        try:
            table = tomllib.loads(path.read_text())
            _refuse_unknown(table)
            events = read_events(table.get("events", ()))
            return cls(Network.read(workers, table["network"]), _compute(table.get("compute", {}), path.parent), events)
        except LaconicError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LaconicError(f"{text} does not describe a network ({error}): see docs/virtual.md") from error


_KNOWN = {
    "network": {"lanes", "levels", "links"},
    "levels": {"workers", "bandwidth", "latency"},
    "compute": {"forward", "backward", "step", "slowness", "straggling", "trace", "seed", "profile"},
    "straggling": {"probability", "factor"},
    "events": {"at", "worker", "what"},
}


def _refuse_unknown(table: Mapping[str, Any]) -> None:
    """Raise for an unknown key: a misspelt one would silently be ignored."""
    compute, network = table.get("compute", {}), table.get("network", {})
    places = [
        ("network", network),
        *(("levels", row) for row in network.get("levels", ())),
        ("compute", compute),
        ("straggling", compute.get("straggling", {})),
        *(("events", row) for row in table.get("events", ())),
    ]
    for name in table.keys() - {"network", "compute", "events"}:
        raise LaconicError(f"a network file has no table [{name}]: it has [network], [compute] and [[events]]")
    for where, given in places:
        for name in given.keys() - _KNOWN[where]:
            raise LaconicError(
                f"{where} has no {name!r} in a network file: it takes {', '.join(sorted(_KNOWN[where]))}"
            )


def _compute(table: Mapping[str, Any], folder: Path) -> Compute:
    straggling = table.get("straggling")
    given = Compute(
        forward_seconds=seconds(table.get("forward", 0)),
        backward_seconds=seconds(table.get("backward", 0)),
        step_seconds=seconds(table.get("step", 0)),
        slowness=tuple(map(float, table.get("slowness", (1.0,)))),
        straggling=None if straggling is None else Stragglers(straggling["probability"], straggling["factor"]),
        trace=tuple(tuple(map(float, row)) for row in table.get("trace", ())),
        seed=int(table.get("seed", 0)),
    )
    return given if "profile" not in table else given.as_measured(Profile.read(folder / table["profile"]))


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
