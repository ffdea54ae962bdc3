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
_DESCRIPTION = ".toml"
_LOGS = (".txt", ".log", ".csv", ".json", ".out")


@dataclass(frozen=True)
class DescribedLinks:
    """The network among workers, the slowness of each worker, and notes on where the figures come from."""

    network: Network
    slowness: tuple[float, ...] = (1.0,)
    notes: tuple[str, ...] = ()


def links_of(
    text: str | Network,
    workers: int,
    gpu: Gpu | None = None,
    latency: str | None = None,
    gpus_per_host: int | None = None,
) -> DescribedLinks:
    """Return the network that a text describes for so many workers; where it is a rate, GPUs are grouped in hosts of so
    many, by default as they are usually sold."""
    if gpus_per_host is not None:
        _check_hosts(gpus_per_host, text, gpu)
    if isinstance(text, Network):
        if text.size != workers:
            raise PlanError(f"the network is for {text.size} workers, not {workers}: give Network(size={workers}, …)")
        return DescribedLinks(text, notes=("the network as given",))
    if text.endswith(_DESCRIPTION):
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
    levels, where = _hosts(outer, workers, gpu, gpus_per_host or gpu.per_machine)
    return DescribedLinks(
        Network(workers, levels, lanes=1, trees=True), notes=(note, where, "all-reduces by ring or tree, as NCCL")
    )


def links_named(
    text: str | Network, workers: int, gpu: Gpu | None, latency: str | None, gpus_per_host: int | None
) -> DescribedLinks:
    """Return the network that a user named. A rate is meant to be the one between GPUs: where all would fit into one
    machine, in which nothing crosses the network, each stands in its own, and a note says so."""
    if gpus_per_host is not None or gpu is None or not _is_rate(text) or not 1 < workers <= gpu.per_machine:
        return links_of(text, workers, gpu, latency, gpus_per_host)
    apart = links_of(text, workers, gpu, latency, 1)
    told = (
        f"GPUs stand apart, since a network was named: --gpus-per-host {workers} puts all {workers} {gpu.name} into "
        f"one machine, joined by {gpu.link}"
    )
    return replace(apart, notes=(told, *apart.notes))


def _check_hosts(gpus_per_host: int, text: str | Network, gpu: Gpu | None) -> None:
    if gpus_per_host < 1:
        raise PlanError(f"--gpus-per-host {gpus_per_host} makes no sense: give at least 1")
    if gpu is None or not _is_rate(text):
        raise PlanError(
            f"--gpus-per-host {gpus_per_host} says how GPUs of --gpu share a rate: give it with a model by name or a "
            "profile, and with a rate as --network; for all others, describe the hosts in a .toml file"
        )


def _is_rate(text: str | Network) -> bool:
    """Return whether a network is given as a rate, which does not say how GPUs are grouped in hosts."""
    return isinstance(text, str) and text != PROBE and Path(text).suffix not in (_DESCRIPTION, *_LOGS)


def _hosts(outer: Level, workers: int, gpu: Gpu, each: int) -> tuple[tuple[Level, ...], str]:
    """Return the levels of a network of hosts with so many GPUs each, and a note on them."""
    inside = min(each, workers)
    own = Level(1, 8 * gpu.link_bytes_per_second * LINE_SHARE, _INSIDE_LATENCY)
    joined = f"{inside} {gpu.name} joined by {gpu.link}"
    if workers <= inside:
        return (own,), f"all in one machine of {joined}: the network is not used"
    if inside == 1:
        return (outer,), f"machines of one {gpu.name} each"
    return (own, replace(outer, workers=inside)), f"machines of {joined}"


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
