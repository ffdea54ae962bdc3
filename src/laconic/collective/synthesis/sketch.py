"""Sketches: what a person knows of a network, by which a search for its collectives becomes small."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from laconic.errors import LaconicError

Policy = Literal["uc-max", "uc-min"]


@dataclass(frozen=True)
class Switched:
    """Ranks behind one switch, and whether they should use as many connections through it as they can, or as few."""

    ranks: tuple[int, ...]
    policy: Policy

    def __post_init__(self) -> None:
        if self.policy not in ("uc-max", "uc-min"):
            raise LaconicError(f"connections through a switch are used by uc-max or uc-min, not {self.policy!r}")


@dataclass(frozen=True)
class Sketch:
    """What TACCL is told beside the network.

    - `ways`: the pairs of ranks that may send to each other directly, in this direction.
    - `turns`: rotations (offset, ranks) that solutions are the same under: in each group of so many neighbouring ranks
      every rank is moved by so many places.
    - `chunks`: into how many each chunk of a collective is cut.
    - `switches`: the switches and how their connections are used.
    """

    ways: frozenset[tuple[int, int]]
    turns: tuple[tuple[int, int], ...] = ()
    chunks: int = 1
    switches: tuple[Switched, ...] = ()


def hosts_sketch(
    hosts: int,
    inside: int,
    senders: Collection[int] | None = None,
    policy: Policy = "uc-max",
    chunks: int = 1,
) -> Sketch:
    """Return the sketch of equal hosts of neighbouring ranks, each with a switch inside.

    All ranks of a host send to each other. Between hosts a rank sends to the one at the same place of the other host,
    and only ranks at the places of `senders` do; without them all do, and solutions are the same for all ranks.
    """
    chosen: Sequence[int] = range(inside) if senders is None else sorted(senders)
    ranks = range(hosts * inside)
    near = {(a, b) for a in ranks for b in ranks if a != b and a // inside == b // inside}
    far = {(a, b) for a in ranks for b in ranks if a != b and a % inside == b % inside and a % inside in chosen}
    turns = [(inside, hosts * inside)] if hosts > 1 else []
    if len(chosen) == inside > 1:
        turns.append((1, inside))
    switches = tuple(Switched(tuple(range(h * inside, (h + 1) * inside)), policy) for h in range(hosts))
    return Sketch(frozenset(near | far), tuple(turns), chunks, switches if inside > 1 else ())
