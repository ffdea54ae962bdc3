"""`laconic.plan`: from what a person has to advice."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from laconic.network.levels import Network
from laconic.planner.advise import Wishes, advise
from laconic.planner.codecs import codecs_on
from laconic.planner.deployment import Deployment
from laconic.planner.networks import PROBE, DescribedLinks, links_of
from laconic.planner.sources import Subject, subject_of
from laconic.planner.values import Advice, Objective, PlanError
from laconic.units import write_rate

if TYPE_CHECKING:
    from laconic.planner.verified import Verified

_CANDIDATES_TO_VERIFY = 6


def plan(
    subject: str,
    *arguments: str,
    workers: int = 8,
    network: str = "1gbit",
    objective: Objective = "time",
    loss_budget: float = 0.0,
    gpu: str | None = None,
    batch: int | None = None,
    latency: str | None = None,
    servers: int = 0,
    slowness: Sequence[float] = (),
    price: float | None = None,
    price_per_gigabyte: float = 0.0,
    watts: float | None = None,
    consider: Sequence[str] | None = None,
    top: int = 12,
    net: str | None = None,
    fresh: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Advice:
    """What each strategy would take, ranked, and what to do: the same as `laconic plan`.

    `subject` is a script (with its arguments), a profile or trace as JSON, or a model of the zoo on a `gpu`. `network`
    is a rate, a .toml file, the output of nccl-tests, or "probe" for the machines at hand. `loss_budget` is the share
    by which the loss may rise (0.005 is half a percent); without it the mathematics stays as it is.
    """
    found = subject_of(subject, arguments, workers, network, gpu, batch, net, fresh)
    links = _probed(found, workers) if network == PROBE else links_of(network, workers, found.gpu, latency)
    chip = found.gpu
    wishes = Wishes(
        objective,
        loss_budget,
        dollars_per_hour=price if price is not None or chip is None else chip.dollars_per_hour,
        dollars_per_gigabyte=price_per_gigabyte,
        watts=watts if watts is not None or chip is None else chip.watts,
    )
    deployment = Deployment(
        found.profile,
        links.network if not servers else replace(links.network, size=workers + servers),
        workers,
        tuple(slowness) or links.slowness,
        servers,
        () if chip is None else codecs_on(chip),
    )
    return advise(
        deployment,
        found.name,
        network if network != PROBE else _asked(found, net),
        wishes,
        consider,
        top,
        lambda strategy: _line(strategy, subject, arguments, workers, servers, found),
        progress,
        (*found.notes, *links.notes, *_on_codecs(found)),
    )


def verify_advice(
    advice: Advice,
    subject: str,
    arguments: Sequence[str],
    network: str,
    budget_seconds: float,
    progress: Callable[[float, str], None],
) -> Verified:
    """Train the baseline's mathematics and the first options with the script itself, on virtual workers."""
    from laconic.planner.verify import verify

    if Path(subject).suffix != ".py":
        raise PlanError(f"--verify trains a script, and {subject} is none: give the path of your training script")
    found = subject_of(subject, arguments, advice.workers, network)
    strategies = ["bsp / cast_fp16", *(o.strategy for o in advice.options if not o.strategy.startswith("torch:"))]
    return verify(
        (subject, *arguments),
        strategies[: _CANDIDATES_TO_VERIFY + 1],
        advice.workers,
        None if network == PROBE else network,
        None if found.path is None else str(found.path),
        budget_seconds,
        progress,
    )


def _probed(found: Subject, workers: int) -> DescribedLinks:
    if found.profile.links is None:
        raise PlanError(
            f"{found.name} brings no measured links, so there is nothing to probe: plan a script with --network probe, "
            "or describe a network, as --network 1gbit"
        )
    return DescribedLinks(Network.from_profile(found.profile, workers))


def _asked(found: Subject, net: str | None) -> str:
    links = found.profile.links
    rate = None if links is None else links.bits_per_second
    return f"probed ({net or 'this machine'}{'' if rate is None else ', ' + write_rate(rate)})"


def _on_codecs(found: Subject) -> tuple[str, ...]:
    if found.gpu is not None:
        return (f"compression as timed on an H200, scaled to {found.gpu.name}'s memory",)
    if not found.profile.codecs:
        return ("encoding and decoding were not timed and count as nothing: lossy rows are too fast",)
    return ("compression as timed here",)


def _line(strategy: str, subject: str, arguments: Sequence[str], workers: int, servers: int, found: Subject) -> str:
    script = [subject, *arguments] if Path(subject).suffix == ".py" else ["train.py"]
    more = ["--servers", str(servers)] if servers else []
    return shlex.join(["laconic", "run", "--workers", str(workers), *more, "--strategy", strategy, *script])
