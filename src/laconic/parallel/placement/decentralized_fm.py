"""The scheduler of decentralised training: devices are divided into stages by an evolutionary search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from laconic.errors import LaconicError
from laconic.parallel.placement.device_links import DeviceLinks
from laconic.parallel.placement.group_costs import GroupCosts, Groups
from laconic.registry import technique

_Value = Callable[[Groups], float]
_CROSSOVER_POINTS = 5
_SAMPLED_MOVES = 24
"""How many ways to begin or to extend a cycle are compared; where there are no more, all are."""


@dataclass(frozen=True)
class Placement:
    """Devices by stage and replica.

    - `pipelines`: of each replica the devices of its stages, in order.
    - `seconds`: what the model of the search says of it.
    """

    pipelines: tuple[tuple[int, ...], ...]
    seconds: float

    def __post_init__(self) -> None:
        used = [device for pipeline in self.pipelines for device in pipeline]
        if len({len(pipeline) for pipeline in self.pipelines}) != 1 or sorted(used) != list(range(len(used))):
            raise LaconicError("a placement gives every device one stage of one pipeline, and all pipelines all stages")

    @property
    def stages(self) -> Groups:
        """For each stage the devices that hold it."""
        return tuple(zip(*self.pipelines, strict=True))


@technique(
    "decentralized_fm",
    axis="parallel",
    paper="Yuan et al., NeurIPS 2022",
    why_no_word="It places the stages and replicas of a pipeline on devices, which a sentence does not mention.",
)
def place(
    links: DeviceLinks,
    stages: int,
    gradient_bytes: float,
    activation_bytes: float,
    population: int = 4,
    generations: int = 8,
    seed: int = 0,
) -> Placement:
    """Return a placement for which the exchange of gradients and the pipelines together take little time.

    Devices are divided into as many groups as there are stages. The slowest group's exchange through sharded servers,
    and twice the cheapest path through the groups, are the cost; between two groups on the path, devices are paired so
    that the slowest send is fastest. A population of random divisions improves: an offspring takes five devices' groups
    from a second parent, then moves devices along cycles of groups, each device once, while that gains, and replaces
    the worse parent if it is better. The gain of a move is, in every other generation, that of mean costs
    (`GroupCosts.relaxed`): where only the slowest link counts, most moves change nothing.

    - `links`: delays and bandwidths between all devices.
    - `stages`: of the model; it divides the number of devices.
    - `gradient_bytes`: of one stage.
    - `activation_bytes`: between two stages, of one replica's share of a batch.
    - `population`, `generations`: of the search.
    - `seed`: of its draws.
    """
    if stages < 1 or links.size % stages:
        raise LaconicError(f"{links.size} devices cannot hold {stages} stages equally often; leave some devices out")
    costs = GroupCosts(links, links.size // stages, gradient_bytes, activation_bytes)
    draw = np.random.default_rng(seed)
    members = [random_groups(links.size, stages, draw) for _ in range(population)]
    members = [_move_along_cycles(member, costs, costs.relaxed, draw) for member in members]
    scores = [costs.objective(member) for member in members]
    for generation in range(generations):
        first, second = (int(k) for k in draw.choice(population, 2, replace=population < 2))
        value = costs.objective if generation % 2 else costs.relaxed
        offspring = _move_along_cycles(_cross(members[first], members[second], draw), costs, value, draw)
        score, worse = costs.objective(offspring), max(first, second, key=lambda k: scores[k])
        if score < scores[worse]:
            members[worse], scores[worse] = offspring, score
    return arrange(members[int(np.argmin(scores))], costs)


def random_groups(devices: int, stages: int, draw: np.random.Generator) -> Groups:
    """Return a random division of devices into equal groups."""
    order = draw.permutation(devices).tolist()
    return tuple(tuple(order[k::stages]) for k in range(stages))


def arrange(groups: Groups, costs: GroupCosts) -> Placement:
    """Return the placement of a division: groups in the order of the cheapest path, devices paired from one to the
    next."""
    _, order = costs.path(groups)
    pipelines = [[device] for device in groups[order[0]]]
    for group in (groups[k] for k in order[1:]):
        to = costs.pairing([pipeline[-1] for pipeline in pipelines], group)
        for pipeline in pipelines:
            pipeline.append(to[pipeline[-1]])
    return Placement(tuple(tuple(pipeline) for pipeline in pipelines), costs.objective(groups))


def _cross(one: Groups, other: Groups, draw: np.random.Generator) -> Groups:
    """Return the second parent's groups with five devices where the first parent has them; devices of groups that are
    too large then fill those that are too small."""
    of = [_group_of(parent) for parent in (one, other)]
    child = list(of[1])
    for device in draw.permutation(len(child))[:_CROSSOVER_POINTS]:
        child[device] = of[0][device]
    size = len(one[0])
    counts = [child.count(group) for group in range(len(one))]
    for device in draw.permutation(len(child)):
        if counts[child[device]] > size:
            counts[child[device]] -= 1
            child[device] = next(group for group, count in enumerate(counts) if count < size)
            counts[child[device]] += 1
    return tuple(tuple(d for d, group in enumerate(child) if group == k) for k in range(len(one)))


def _group_of(groups: Groups) -> list[int]:
    found = [0] * sum(map(len, groups))
    for k, group in enumerate(groups):
        for device in group:
            found[device] = k
    return found


def _move_along_cycles(groups: Groups, costs: GroupCosts, value: _Value, draw: np.random.Generator) -> Groups:
    """Return what cycles of moves make of a division, in passes in which a device moves once, until a pass gains
    nothing."""
    least = value(groups)
    while True:
        begun, locked = least, set[int]()
        for _ in range(len(groups)):
            found, moved, reached = _best_cycle(groups, costs, value, locked, draw)
            if reached < least - 1e-12:
                groups, least = found, reached
                locked |= moved
        if least == begun:
            return groups


def _best_cycle(
    groups: Groups, costs: GroupCosts, value: _Value, locked: set[int], draw: np.random.Generator
) -> tuple[Groups, set[int], float]:
    """Return the best division on the way of a cycle that grows by a group at a time, and the devices that moved.

    In a cycle a device of the first group goes to the second, one of the second to the third, and one of the last to
    the first. To extend it by a group, the device that came to the first group goes there, and another comes from
    there.
    """
    best, moved, least = groups, set[int](), np.inf
    current, home, last, chain = groups, -1, -1, list[int]()
    in_cycle: list[int] = []
    while len(in_cycle) < len(groups):
        if not in_cycle:
            home = int(draw.integers(len(groups)))
        leaving = [last] if in_cycle else _distinct(groups[home], costs, locked)
        ways = [
            (out, target, back)
            for out in leaving
            for target in range(len(groups))
            if target != home and target not in in_cycle
            for back in _distinct(current[target], costs, locked)
        ]
        if not ways:
            break
        picked = [ways[k] for k in draw.permutation(len(ways))[:_SAMPLED_MOVES]]
        trials = [(_swapped(current, home, out, target, back), out, target, back) for out, target, back in picked]
        values = [value(trial[0]) for trial in trials]
        reached = min(values)
        current, out, target, last = trials[values.index(reached)]
        in_cycle = [*(in_cycle or [home]), target]
        chain += [out, last]
        if reached < least:
            best, moved, least = current, set(chain), reached
        elif reached > least:
            break
    return best, moved, float(least)


def _distinct(group: Sequence[int], costs: GroupCosts, locked: set[int]) -> list[int]:
    """Return the devices of a group that may move, one of each class."""
    return list({costs.class_of[device]: device for device in group if device not in locked}.values())


def _swapped(groups: Groups, home: int, out: int, target: int, back: int) -> Groups:
    """Return the groups when a device leaves home for the target and another comes back from there."""
    found = list(groups)
    found[home] = (*(d for d in groups[home] if d != out), back)
    found[target] = (*(d for d in groups[target] if d != back), out)
    return tuple(found)
