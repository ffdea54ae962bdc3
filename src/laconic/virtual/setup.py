"""The setting of a simulation as people describe it: a rate, or a TOML file with links, computing times and events."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laconic.errors import LaconicError
from laconic.files import is_file
from laconic.network.network_tree import Network
from laconic.units import bits_per_second, seconds
from laconic.values.profile import Profile
from laconic.virtual.compute import Compute, Stragglers
from laconic.virtual.membership import Event, read_events

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
        if not is_file(path):
            raise LaconicError(f'there is no network file {text}: give a .toml file, or a rate such as "1gbit"')
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
            _refuse_unknown(table)
            events = read_events(table.get("events", ()))
            return cls(Network.read(workers, table["network"]), _compute(table.get("compute", {}), path.parent), events)
        except LaconicError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise LaconicError(f"{text} does not describe a network ({error}): see docs/virtual.md") from error


_KNOWN = {
    "network": {"lanes", "levels", "links", "changes", "pairs"},
    "changes": {"at", "worker", "bandwidth"},
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
        *(("changes", row) for row in network.get("changes", ())),
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
