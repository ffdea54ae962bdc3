"""The output of `nvidia-smi topo -m`: a host's GPUs and network cards, and the class of link between each two."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

from laconic.profile.gpus.table import LINKS, Gpu, gpu
from laconic.profile.inputs.files import InputError, text_of, without_colours

CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")  # from near to far
_ONE = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|X")
_CELL = re.compile(rf"(?:{_ONE.pattern})+")
_WHAT = "the output of `nvidia-smi topo -m`"
_SHARE_OF_PCIE = {"PIX": 0.85, "PXB": 0.85, "PHB": 0.7, "NODE": 0.6, "SYS": 0.45}
"""The share of their slot's rate that two GPUs reach through switches, a root complex or between processors."""


@dataclass(frozen=True)
class Unit:
    """A level of a virtual network: groups of `gpus` neighbours behind links of one rate and latency."""

    gpus: int
    bits_per_second: float
    latency_seconds: float


@dataclass(frozen=True)
class HostTopology:
    """The topology of one host; `links[a, b]` is a class: NV and a number, PIX, PXB, PHB, NODE or SYS."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: Mapping[tuple[str, str], str]  # in both directions
    numa: Mapping[str, str]  # of a GPU, where the table says so
    nic_names: Mapping[str, str]  # such as NIC0: mlx5_0

    def link(self, a: str, b: str) -> str:
        """Return the class of link between two devices."""
        if (a, b) not in self.links:
            raise InputError(f"nothing is known between {a} and {b}; there are {', '.join(self.gpus + self.nics)}")
        return self.links[a, b]

    def bytes_per_second(self, a: str, b: str, kind: str | Gpu = "A100") -> float:
        """Return the one-way rate between two devices for a kind of GPU: an assumption where nothing was measured."""
        return rate(self.link(a, b), kind)

    def nearest_nic(self, name: str) -> str | None:
        """Return the network card nearest to this GPU, or None."""
        ranked = [(_distance(self.links[name, nic]), nic) for nic in self.nics if (name, nic) in self.links]
        return min(ranked)[1] if ranked else None

    def groups(self, farthest: str) -> tuple[tuple[str, ...], ...]:
        """Return the groups of GPUs that are connected by links no farther than this class."""
        left, found = list(self.gpus), []
        while left:
            group, more = [], [left.pop(0)]
            while more:
                here = more.pop()
                group.append(here)
                near = [other for other in left if _distance(self.links[here, other]) <= _distance(farthest)]
                more += near
                left = [other for other in left if other not in near]
            found.append(tuple(sorted(group, key=self.gpus.index)))
        return tuple(found)

    def levels(self, kind: str | Gpu = "A100") -> tuple[Unit, ...]:
        """Return the levels from inner to outer, beginning with each GPU's own link; groups of a level have equal size.

        A group's link carries the traffic that leaves it, so its rate is that of the class of link to other groups.
        """
        chip = gpu(kind) if isinstance(kind, str) else kind
        between = {(a, b): link_class for (a, b), link_class in self.links.items() if a in self.gpus and b in self.gpus}
        if not between:
            return (Unit(1, 8 * _slot(chip), _latency("PHB")),)
        link_classes = sorted(set(between.values()), key=_distance)
        units = [Unit(1, 8 * min(self._own_rate(name, chip) for name in self.gpus), _latency(link_classes[0]))]
        for nearer, farther in pairwise(link_classes):
            if _distance(nearer) == _distance(farther):
                continue
            sizes = {len(group) for group in self.groups(nearer)}
            size = max(sizes)
            if len(sizes) == 1 and units[-1].gpus < size < len(self.gpus) and size % units[-1].gpus == 0:
                units.append(Unit(size, 8 * rate(farther, chip), _latency(farther)))
        return tuple(units)

    def _own_rate(self, name: str, chip: Gpu) -> float:
        """Return the rate of all NVLinks of a GPU: some to each neighbour, or the same ones to all through a switch."""
        link_classes = [self.links[name, other] for other in self.gpus if other != name]
        bonded = sum(int(link_class[2:]) for link_class in link_classes if link_class.startswith("NV"))
        if not bonded:
            return max(rate(link_class, chip) for link_class in link_classes)
        whole = chip.link_bytes_per_second if chip.link.startswith("NVLink") else math.inf
        return min(bonded * _nvlink(chip), whole)


def rate(link_class: str, kind: str | Gpu = "A100") -> float:
    """Return the one-way bytes per second of a class of link on a kind of GPU."""
    chip = gpu(kind) if isinstance(kind, str) else kind
    if bonded := re.fullmatch(r"NV(\d+)", link_class):
        return int(bonded[1]) * _nvlink(chip)
    if link_class not in _SHARE_OF_PCIE:
        raise InputError(f"{link_class!r} is no class of `nvidia-smi topo -m`: they are NV#, {', '.join(CLASSES)}")
    return _SHARE_OF_PCIE[link_class] * _slot(chip)


def read(path: str | Path) -> HostTopology:
    """Return the topology in a file."""
    return parse(text_of(path, _WHAT), str(path))


def parse(text: str, where: str = "this text") -> HostTopology:
    """Return the topology in a text with colours, affinities and legend, as any version of the tool prints it."""
    lines = without_colours(text).splitlines()
    head = next(
        (i for i, line in enumerate(lines) if re.match(r"\s*GPU0\b", line) and not re.search(r"\bX\b", line)), -1
    )
    if head < 0:
        raise InputError(f"{where} holds no table of links between GPUs: give {_WHAT}")
    names = re.split(r"CPU|NUMA", lines[head])[0].split()
    links: dict[tuple[str, str], str] = {}
    seen: list[str] = []
    numa: dict[str, str] = {}
    legend: dict[str, str] = {}
    for line in lines[head + 1 :]:
        if named := re.match(r"\s*(NIC\d+):\s*(\S+)", line):
            legend[named[1]] = named[2]
        cells = line.split()
        if cells and cells[0] in names and cells[0] not in seen:
            seen.append(cells[0])
            row, rest = _row(cells[1:], len(names), cells[0], where)
            links |= {(cells[0], other): link_class for other, link_class in zip(names, row, strict=False)}
            if cells[0].startswith("GPU") and len(rest) > 1:
                numa[cells[0]] = rest[1]
    if missing := [name for name in names if name not in seen]:
        raise InputError(f"{where} has no line for {', '.join(missing)}: {_WHAT} is needed in full")
    links = {
        (b, a): link_class for (a, b), link_class in links.items()
    } | links  # a cell that was cut stands in the other line
    for a, b in product(names, names):
        link_class, back = links.get((a, b)), links.get((b, a))
        if link_class is None:
            raise InputError(f"{where} does not say what lies between {a} and {b}: {_WHAT} is needed in full")
        if (link_class == "X") != (a == b) or link_class != back:
            raise InputError(f"{a} and {b} do not agree in {where} ({link_class} and {back}): are cells missing?")
    links = {pair: link_class for pair, link_class in links.items() if link_class != "X"}
    gpus = tuple(name for name in names if name.startswith("GPU"))
    return HostTopology(gpus, tuple(name for name in names if name not in gpus), links, numa, legend)


def _row(cells: list[str], count: int, name: str, where: str) -> tuple[list[str], list[str]]:
    """Return the classes in a line, and the cells behind them.

    In wide tables the tool itself runs cells together (`PIXNODE`) and writes affinities over the last (`PH0-115`).
    """
    found: list[str] = []
    for index, cell in enumerate(cells):
        classes = _CELL.fullmatch(cell)
        if len(found) >= count or (not classes and re.match(r"[A-Z]*\d+[-,\d]*$|N/A", cell)):
            return found[:count], cells[index:]
        if not classes:
            raise InputError(
                f"{cell!r} in the line of {name} in {where} is no class of link: X, NV#, {', '.join(CLASSES)}"
            )
        found += [
            "SYS" if link_class == "SOC" else link_class for link_class in _ONE.findall(cell)
        ]  # as old drivers call it
    return found[:count], []


def _distance(link_class: str) -> int:
    """Return the distance of a class of link: NVLinks are nearest, then the classes over PCIe."""
    return 0 if link_class.startswith("NV") else 1 + CLASSES.index(link_class)


def _nvlink(chip: Gpu) -> float:
    """Return the one-way rate of an NVLink: 25 GB/s in the second to fourth generation, twice that in the fifth."""
    return 50e9 if chip.link == "NVLink 5" else 25e9


def _latency(link_class: str) -> float:
    """Return the one-way latency of a class of link as collectives inside a host see it: a few microseconds."""
    return 2e-6 if link_class.startswith("NV") else 5e-6


def _slot(chip: Gpu) -> float:
    """Return the rate of the PCIe slot of this generation of GPUs."""
    beside = {"NVLink 2": "PCIe 3.0 x16", "NVLink 3": "PCIe 4.0 x16"}
    name = beside.get(chip.link, "PCIe 5.0 x16") if chip.link.startswith("NVLink") else chip.link
    return LINKS[name]
