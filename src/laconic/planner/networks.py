"""Networks from the text of `--network`: a rate, a file that describes one, a log of nccl-tests, or a probe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from laconic.errors import LaconicError
from laconic.files import is_file
from laconic.network.network_tree import Level, Network
from laconic.planner.values import PlanError
from laconic.profile.gpus import Gpu
from laconic.profile.inputs import nccl_tests
from laconic.units import bits_per_second, seconds, write_rate, write_seconds
from laconic.virtual.setup import VirtualSetup

PROBE = "probe"
LINE_SHARE = 0.88
"""The share of the line rate that collectives reach: 0.86 to 0.88 with gloo on links shaped by `laconic net`, 0.90 with
NCCL on 10 Gb/s Ethernet (fitted to published step times, see docs/validate.md)."""

_SLOW_LATENCY, _FAST_LATENCY, _FAST = 50e-6, 10e-6, 25e9
_INSIDE_LATENCY = 5e-6
_LOGS = (".txt", ".log", ".csv", ".json", ".out")


@dataclass(frozen=True)
class DescribedLinks:
    """The network among workers, the slowness of each worker, and notes on where the figures come from."""

    network: Network
    slowness: tuple[float, ...] = (1.0,)
    notes: tuple[str, ...] = ()


def links_of(text: str | Network, workers: int, gpu: Gpu | None = None, latency: str | None = None) -> DescribedLinks:
    """Return the network that a text describes for so many workers; GPUs are grouped in hosts as usually sold."""
    if isinstance(text, Network):
        if text.size != workers:
            raise PlanError(f"the network is for {text.size} workers, not {workers}: give Network(size={workers}, …)")
        return DescribedLinks(text, notes=("the network as given",))
    if text.endswith(".toml"):
        given = VirtualSetup.read(text, workers)
        return DescribedLinks(given.network, given.compute.slowness, (f"the network of {text}",))
    if Path(text).suffix in _LOGS:
        return _of_log(text, workers)
    try:
        rate = bits_per_second(text)
    except LaconicError as error:
        raise PlanError(
            f"--network {text} is no network, since {error}; a .toml file, the output of nccl-tests or probe are others"
        ) from error
    one_way = seconds(latency) if latency is not None else _SLOW_LATENCY if rate < _FAST else _FAST_LATENCY
    outer = Level(1, LINE_SHARE * rate, one_way)
    note = (
        f"links of {write_rate(rate)}, of which collectives get {100 * LINE_SHARE:.0f} %, "
        f"{write_seconds(one_way)} one way"
    )
    if gpu is None:
        return DescribedLinks(Network(workers, (outer,)), notes=(note,))
    inside = min(gpu.per_machine, workers)
    own = Level(1, 8 * gpu.link_bytes_per_second * LINE_SHARE, _INSIDE_LATENCY)
    levels = (own,) if workers <= inside else (own, replace(outer, workers=inside))
    joined = f"{inside} {gpu.name} joined by {gpu.link}"
    where = f"all in one machine of {joined}: the network is not used" if len(levels) == 1 else f"machines of {joined}"
    return DescribedLinks(
        Network(workers, levels, lanes=1, trees=True), notes=(note, where, "all-reduces by ring or tree, as NCCL")
    )


def _of_log(text: str, workers: int) -> DescribedLinks:
    """Return the log's measured times if it has as many ranks, else a link with its best rate and its least time."""
    if not is_file(text):
        raise PlanError(
            f"there is no file {text}: give the output of nccl-tests, a .toml file, or a rate such as 1gbit"
        )
    log = nccl_tests.read(text)
    links = log.links()
    best = max(max(row.bus_bytes_per_second) for row in log.rows)
    if best <= 0:
        raise PlanError(f"{text} has no rates: run nccl-tests up to large sizes (-b 8 -e 1G -f 2)")
    if log.ranks == workers:
        level = Level(1, 8 * best)
        return DescribedLinks(
            Network(workers, (level,), lanes=1, measured=links, trees=True),
            notes=(f"{log.operation} among {workers} ranks as {text} has it; other operations by its rate",),
        )
    least = min(min(row.seconds) for row in log.rows)
    level = Level(1, 8 * best, least / (2 * max(1, log.ranks - 1)))
    return DescribedLinks(
        Network(workers, (level,), lanes=1, trees=True),
        notes=(f"{text} is of {log.ranks} ranks, not {workers}: its best rate and its least time are used",),
    )
