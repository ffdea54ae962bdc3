"""`laconic.plan`: advice from a script, a model's name, a profile or a trace."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from laconic.errors import StrategyError
from laconic.literals import read_number
from laconic.network.network_tree import Level, Network
from laconic.planner.advise import advise
from laconic.planner.autotune import PAYS
from laconic.planner.codec_times import codecs_on
from laconic.planner.deployment import Deployment
from laconic.planner.networks import PROBE, DescribedLinks, links_named, links_of
from laconic.planner.phases import scales
from laconic.planner.predictive_length import predictive_length
from laconic.planner.preferences import Preferences
from laconic.planner.priced_candidates import BASELINE
from laconic.planner.risk import training_of
from laconic.planner.sources import Subject, is_script, subject_of
from laconic.planner.values import Advice, Objective, PlanError
from laconic.profile.gpus import Gpu
from laconic.profile.gpus import gpu as gpu_named
from laconic.profile.gpus.memory import RESERVED_SHARE
from laconic.strategy import Strategy
from laconic.units import write_rate

if TYPE_CHECKING:
    from laconic.planner.verify_results import Verified

DEFAULT_NETWORK = "1gbit"
_LEAST_MEMORY = 2**20  # bytes
_CANDIDATES_TO_VERIFY = 7  # beside the baseline: eight halve evenly


def plan(
    subject: str,
    *arguments: str,
    workers: int = 8,
    network: str | Network | None = None,
    objective: Objective = "time",
    loss_budget: float = 0.0,
    gpu: str | None = None,
    batch: int | None = None,
    gpu_memory: str | None = None,
    gpus_per_host: int | None = None,
    latency: str | None = None,
    run_steps: int | None = None,
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
    """Rank all strategies by their predicted cost and recommend one, as `laconic plan` does.

    - `subject`: a training script, a profile or PyTorch trace as JSON, or the name of a model such as `"resnet50"`.
    - `arguments`: the script's own arguments.
    - `workers`: the number of workers that will train.
    - `network`: a rate such as `"1gbit"`, a `.toml` file (docs/virtual.md), the output of nccl-tests, `"probe"` to
      measure the links here, or a `laconic.Network`; default: `"1gbit"` between machines of GPUs as usually sold.
    - `objective`: what to minimise for each step: `"time"`, `"bytes"`, `"cost"` or `"energy"`.
    - `loss_budget`: the share by which the loss may rise, 0.005 for half a percent; without it the mathematics stays.
    - `gpu`: for a model by name, the GPU it runs on, as `"v100"`.
    - `batch`: for a model by name, samples on each GPU; default: as many as fit.
    - `gpu_memory`: the memory of each GPU, as `"80GB"`; default: that of the named GPU. Where it is known, ways to
      shard the model are priced too, and what does not fit is told.
    - `gpus_per_host`: for a named GPU and a rate, how many stand in each machine; default: as many as usual, but one
      each where a rate is named and all would fit into one machine, where nothing crosses the network.
    - `latency`: with a rate, the one-way latency, as `"50us"`.
    - `run_steps`: how many steps the run will have, by which phases are weighed; default: as many as the trainings had
      in which losses of such a model were measured, else the last phase counts for all.
    - `servers`: machines beside the workers that may be parameter servers.
    - `slowness`: factors by which workers compute more slowly, cycled; default: what a `.toml` file says, or 1.
    - `price`: dollars for an hour of a worker, for the objective `"cost"`; default: the GPU's usual price.
    - `price_per_gigabyte`: dollars for a gigabyte that a worker sends.
    - `watts`: the power of a busy worker, for the objective `"energy"`; default: the GPU's.
    - `consider`: strategies to price and show in place of all candidates.
    - `top`: how many rows to give, beside techniques whose loss is unknown.
    - `net`: with the network `"probe"`, a network that `laconic net up` made, by name.
    - `fresh`: measure the script again, whatever the cache holds.
    - `progress`: called with the number of strategies priced so far.

    The result is an `Advice`: `options`, the recommended strategy first, a `verdict` in words, whether it `pays`, and
    the `line` to copy.
    """
    _check_counts(
        {"workers": (workers, 1), "servers": (servers, 0), "top": (top, 1)}
        | ({} if run_steps is None else {"run-steps": (run_steps, 1)})
    )
    given = None if gpu_memory is None else read_memory(gpu_memory)
    named, network = network is not None, DEFAULT_NETWORK if network is None else network
    if network != PROBE or gpus_per_host is not None:  # refuses what it cannot read before the script is profiled
        links_of(network, workers, _gpu_of(subject, gpu), latency, gpus_per_host)
    described = network if isinstance(network, str) else f"given ({', '.join(map(_level, network.levels))})"
    source = subject_of(subject, arguments, workers, described, gpu, batch, net, fresh)
    chip = source.gpu
    if network == PROBE:
        links = _probed_links(source, workers)
    else:
        links = (links_named if named else links_of)(network, workers, chip, latency, gpus_per_host)
    has_bytes = given if given is not None or chip is None else chip.memory_bytes
    preferences = Preferences(
        objective,
        loss_budget,
        dollars_per_hour=price if price is not None or chip is None else chip.dollars_per_hour,
        dollars_per_gigabyte=price_per_gigabyte,
        watts=watts if watts is not None or chip is None else chip.watts,
    )
    deployment = Deployment(
        source.profile,
        links.network if not servers else replace(links.network, size=workers + servers),
        workers,
        tuple(slowness) or links.slowness,
        servers,
        () if chip is None else codecs_on(chip),
        run_steps,
    )
    return advise(
        deployment,
        source.name,
        described if network != PROBE else _probed_network(source, net),
        preferences,
        consider,
        top,
        lambda strategy: _command_for(strategy, subject, arguments, workers, servers, source),
        progress,
        (*source.notes, *links.notes, *_codec_notes(source)),
        None if has_bytes is None else (1 - RESERVED_SHARE) * has_bytes,
    )


def verify_advice(
    advice: Advice,
    subject: str,
    arguments: Sequence[str],
    network: str,
    budget_seconds: float,
    progress: Callable[[float, str], None],
) -> Verified:
    """Train the script on virtual workers with the baseline's mathematics and with the options that may change the
    loss, at least as long as was shown to predict."""
    from laconic.planner.verify import verify

    if not is_script(subject):
        raise PlanError(f"--verify trains a script, and {subject} is none: give the path of your training script")
    source = subject_of(subject, arguments, advice.workers, network)
    known = predictive_length(training_of(source.profile, advice.workers))
    worth, left_out = _worth_verifying(advice)
    return verify(
        (subject, *arguments),
        [BASELINE, *worth[:_CANDIDATES_TO_VERIFY]],
        advice.workers,
        None if network == PROBE else network,
        None if source.path is None else str(source.path),
        budget_seconds,
        progress,
        least_steps=0 if known is None else known.steps,
        run_steps=advice.run_steps,
        left_out=left_out,
    )


def _worth_verifying(advice: Advice) -> tuple[list[str], list[str]]:
    """Return the options that may change the loss and would pay, the fastest first (all options if there is none), and
    sentences about those that no short training predicts: phases of which nobody knows the shares."""
    whole, left_out = [], []
    for one in advice.options:
        if (why := _unpredictable(Strategy.parse(one.strategy), advice.run_steps)) is None:
            whole.append(one)
        else:
            left_out.append(f"`{one.strategy}` was left out: {why}")
    rest = [one for one in whole if not one.lossless and one.guarantee != advice.baseline.guarantee]
    paying = sorted((one for one in rest if one.speed_up >= PAYS), key=lambda one: one.step_seconds)
    return [one.strategy for one in paying or whole], left_out


def _unpredictable(strategy: Strategy, run_steps: int | None) -> str | None:
    """Return why a short training says nothing about a strategy; None where it may."""
    if not strategy.conditions():
        return None
    if not scales(strategy):
        return "a short training does not meet the conditions on which its phases end"
    return None if run_steps else "its phases are shares of a run of unknown length: --run-steps N says how many steps"


def read_memory(text: str) -> float:
    """Return the bytes of a GPU's memory."""
    try:
        nbytes = float(read_number(text))
    except (StrategyError, ValueError) as error:
        raise PlanError(f"--gpu-memory {text} is no size: write the memory of a GPU as 80GB or 40GiB") from error
    if nbytes < _LEAST_MEMORY:
        raise PlanError(f"--gpu-memory {text} is no GPU's: write its unit, as 80GB")
    return nbytes


def _check_counts(given: Mapping[str, tuple[int, int]]) -> None:
    """Refuse numbers below the least that makes sense, before anything is measured."""
    for name, (number, least) in given.items():
        if number < least:
            raise PlanError(f"--{name} {number} makes no sense: give at least {least}")


def _gpu_of(subject: str, name: str | None) -> Gpu | None:
    """Return the GPU that counts for a subject: a script's times are measured here, whatever GPU is named."""
    return None if name is None or is_script(subject) else gpu_named(name)


def _probed_links(source: Subject, workers: int) -> DescribedLinks:
    if source.profile.links is None:
        raise PlanError(
            f"{source.name} has no measured links, so there is nothing to probe: plan a script with --network probe, "
            "or describe a network, as --network 1gbit"
        )
    return DescribedLinks(Network.from_profile(source.profile, workers))


def _level(level: Level) -> str:
    return write_rate(level.bits_per_second) + (f" for {level.workers} workers" if level.workers > 1 else "")


def _probed_network(source: Subject, net: str | None) -> str:
    links = source.profile.links
    rate = None if links is None else links.bits_per_second
    return f"probed ({net or 'this machine'}{'' if rate is None else ', ' + write_rate(rate)})"


def _codec_notes(source: Subject) -> tuple[str, ...]:
    if source.gpu is not None:
        return (f"compression as timed on an H200, scaled to {source.gpu.name}'s memory",)
    if not source.profile.codecs:
        return ("encoding and decoding were not timed and count as zero: lossy rows are predicted too fast",)
    return ("compression as timed here",)


def _command_for(
    strategy: str, subject: str, arguments: Sequence[str], workers: int, servers: int, source: Subject
) -> str:
    script = [subject, *arguments] if is_script(subject) else ["train.py"]
    more = ["--servers", str(servers)] if servers else []
    return shlex.join(["laconic", "run", "--workers", str(workers), *more, "--strategy", strategy, *script])
