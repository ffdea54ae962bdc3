"""Jobs of a cluster whose speed on a placement is the planner's price of a training step there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.network.network_tree import Level, Network
from laconic.planner.deployment import Deployment
from laconic.planner.price import Pricer
from laconic.planner.step_price import StepPrice
from laconic.planner.values import PlanError
from laconic.values.profile import CodecTimes, Profile


@dataclass(frozen=True)
class HostLinks:
    """The links of hosts that are all alike.

    - `inside`: bits a second of each GPU's link to the others of its host.
    - `between`: bits a second of a host's link to other hosts.
    - `latency_seconds`: one way between hosts.
    """

    inside: float
    between: float
    latency_seconds: float = 0.0

    def among(self, counts: Sequence[int]) -> Network:
        """Return the network of workers on hosts. Where their numbers differ, each worker's link is its part of the
        link of the host that has the most.

        - `counts`: how many workers each host has.
        """
        workers, most = sum(counts), max(counts)
        if len(counts) == 1:
            return Network.flat(workers, self.inside)
        if min(counts) == most > 1:
            return Network(workers, (Level(1, self.inside), Level(most, self.between, self.latency_seconds)))
        return Network.flat(workers, self.between / most, self.latency_seconds)


class Trained(NamedTuple):
    """What a job trains with on a placement: the strategy, and the price of its step."""

    strategy: str
    price: StepPrice


@dataclass(frozen=True, eq=False)
class PlannedSteps:
    """What a step of a model takes wherever its workers are: the planner's price, with whichever of some strategies
    takes the least time there. Who names a strategy accepts what it does to the loss.

    - `profile`: the model's times on one worker.
    - `strategies`: sentences, such as `bsp / cast_bf16`.
    - `links`: of the hosts.
    - `codecs`: times of compressors on the GPUs, beside those of the profile.
    """

    profile: Profile
    strategies: tuple[str, ...]
    links: HostLinks
    codecs: tuple[CodecTimes, ...] = ()

    def __post_init__(self) -> None:
        if not self.strategies:
            raise PlanError("planned steps need a strategy: name one at least, such as bsp")

    @cached_property
    def _known(self) -> dict[tuple[int, ...], Trained]:
        return {}

    def on(self, counts: Sequence[int]) -> Trained:
        """Return what the model is trained with where hosts have so many workers each.

        - `counts`: the workers of each host.
        """
        key = tuple(sorted(counts))
        if key not in self._known:
            pricer = Pricer(Deployment(self.profile, self.links.among(key), sum(key), codecs=self.codecs))
            found = [Trained(strategy, pricer.price(strategy)) for strategy in self.strategies]
            self._known[key] = min(found, key=lambda one: one.price.seconds)
        return self._known[key]


@dataclass(frozen=True)
class PlannedTraining:
    """A job that trains on any number of workers, each of which has a batch of its own, so that more of them need fewer
    steps for the same samples.

    - `work`: the seconds for which one worker would compute, a unit in which jobs of different models compare.
    - `steps`: what a step takes.
    """

    work: float
    steps: PlannedSteps

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, cluster, beside
        price = self.steps.on([count for _, count in grant.by_host]).price
        share = min(slot.share for slot in grant.slots)
        seconds = price.seconds + price.computing_seconds * (1 / share - 1)
        computed = len(grant.slots) * self.steps.profile.model.seconds
        return Rate(computed / seconds, self.work, price.exposed_seconds / seconds)
