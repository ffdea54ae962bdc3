"""NetMax: one peer in each iteration, without waiting for anyone, drawn by how long each takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from laconic.errors import ContractError
from laconic.registry import knob, technique
from laconic.sync.ad_psgd import Model
from laconic.sync.base import State
from laconic.sync.contexts import ActorContext, MixingContext, SteeringContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, copy_into
from laconic.topology.matchings import Pair
from laconic.topology.peer_policy import PeerPolicy, best_policy
from laconic.worker import ActorMessage, Communication, Field

_PULL, _POLICY, _MONITOR = "pull", "policy", "monitor"
_SMOOTHING = 0.8  # share of the mean that a new time leaves


class Monitor:
    """The actor that collects times and finds the policy, anew whenever all workers have reported since the last."""

    def __init__(self, size: int, edges: Sequence[Pair]) -> None:
        self.outgoing: list[tuple[str, ActorMessage]] = []
        self._edges = tuple(edges)
        self._times = np.full((size, size), math.nan)
        self._fresh: set[int] = set()
        self.policy = PeerPolicy.uniform(size, edges)

    def write(self, sender: int, message: ActorMessage) -> ActorMessage:
        if message.kind == "leave":
            return ActorMessage("policy")
        worker, times = message.number("worker"), message.fields.get("times")
        if not isinstance(times, list) or len(times) != len(self._times):
            raise ContractError(f"worker {sender} reported times that are not one for each worker")
        self._times[worker] = times
        self._fresh.add(worker)
        if len(self._fresh) == len(self._times):
            alone = np.diagonal(self._times)[:, None]
            known = np.where(np.isnan(self._times), alone, np.maximum(self._times, alone))
            self.policy, self._fresh = best_policy(known, self._edges), set()
        row = self.policy.probabilities[worker].tolist()
        return ActorMessage("policy", {"probabilities": row, "strength": self.policy.strength})

    def read(self, sender: int, message: ActorMessage) -> ActorMessage:
        return ActorMessage("policy", {"strength": self.policy.strength})

    def lose(self, sender: int) -> None:
        """Do nothing: the last policy stays until all workers report again."""

    def state(self) -> dict[str, Any]:
        policy = self.policy
        return {
            "times": torch.from_numpy(self._times.copy()),
            "fresh": sorted(self._fresh),
            "probabilities": torch.from_numpy(policy.probabilities.copy()),
            "numbers": [policy.strength, policy.iteration_seconds, policy.seconds],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._times, self._fresh = state["times"].numpy().copy(), set(state["fresh"])
        self.policy = PeerPolicy(state["probabilities"].numpy().copy(), *state["numbers"])


class MonitoredContext(MixingContext, ActorContext, SteeringContext, Protocol):
    """Neighbours, actors on all workers, and a clock."""


@technique("netmax", paper="Zhou et al., IEEE ICDE 2021 (arXiv 2009.05766)")
@dataclass(frozen=True)
class NetMax(Gossiping[MonitoredContext]):
    """Step, then move towards the model of one neighbour, pulled while the gradient was computed; nobody waits for who
    is pulled from, and neighbours that take long are drawn less often.

    Worker i draws neighbour m with probability p_im and moves by strength/p_im of the way towards m's model, so that
    every neighbour pulls equally in the mean, however rarely it is drawn; it may draw nobody. Every `period` iterations
    it reports to a monitor, which worker 0 hosts, how long its iterations took with each neighbour, as moving averages.
    When all have reported, the monitor looks for the policy with which models are predicted to agree first, among those
    that let all workers iterate equally often. A pulled model is of its owner's last iteration, so that a step is drawn
    back by the share of the pull: learning rates want to be larger than those of `dpsgd`.

    Where links are equal the policy is even. So it is where two islands have slow links between them, since agreement
    then hangs on exactly these: of eight workers with links ten times slower across, no policy is predicted to be
    faster than an even choice, where a factor of 1.5 was wanted.

    Readings chosen: the learning rate times rho is one number, the strength, so that a rate that decays does not loosen
    the agreement; an iteration without a peer takes as long as the computation; averages keep a share of 0.8 of their
    value; where workers differ so much that no policy gives all the same mean time, neighbours stay equally likely.
    """

    period: int = knob(20, low=1, doc="iterations of a worker between two reports to the monitor")
    races: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"compression": ("none",)}
    prefers: ClassVar[Mapping[str, str]] = {"topology": "complete"}

    def check(self, context: MonitoredContext) -> None:
        context.mixing().must_be(self.name, "doubly", "symmetric", "static")

    def init(self, context: MonitoredContext) -> State:
        state = super().init(context)
        size, edges = context.group.size, context.mixing().edges
        for member in range(size):
            context.host(_model(member), member, lambda: Model(context.parameters))
        context.host(_MONITOR, 0, lambda: Monitor(size, edges))
        return state

    def begin(self, context: MonitoredContext) -> State:
        size = context.group.size
        policy = PeerPolicy.uniform(size, context.mixing().edges)
        return {
            "probabilities": torch.from_numpy(policy.probabilities[context.group.rank].copy()),
            "strength": torch.tensor(policy.strength, dtype=torch.float64),
            "times": torch.full((size,), math.nan, dtype=torch.float64),
            "began": torch.tensor(math.nan, dtype=torch.float64),
            "peer": torch.tensor(context.group.rank),
        }

    @torch.no_grad()
    def after_step(self, context: MonitoredContext, state: State) -> Communication[State]:
        rank, peer, times = context.group.rank, int(state["peer"]), state["times"].clone()
        began, computed = float(state["began"]), context.seconds
        if context.is_in_flight(_PULL):
            other = yield from context.wait_for(_PULL)
            share = min(1.0, float(state["strength"] / state["probabilities"][peer]))
            copy_into(context.parameters, [p.lerp(x, share) for p, x in zip(context.parameters, other, strict=True)])
        if not math.isnan(began):
            _smooth(times, rank, computed - began)
            if peer != rank:
                _smooth(times, peer, context.seconds - began)
        state = state | {"times": times}
        if context.is_in_flight(_POLICY) and context.has_arrived(_POLICY):
            state |= yield from context.wait_for(_POLICY)
        if (context.step + 1) % self.period == 0 and not context.is_in_flight(_POLICY) and not times[rank].isnan():
            context.start(_POLICY, _report(context, times))
        yield [_send(context, "replace", copies(context.parameters))]
        peer = self.drawn(context, state["probabilities"])
        if peer != rank:
            context.start(_PULL, _pulled(context, peer))
        return state | {"peer": torch.tensor(peer), "began": torch.tensor(context.seconds, dtype=torch.float64)}

    @staticmethod
    def drawn(context: MonitoredContext, probabilities: Tensor) -> int:
        """Return the neighbour to pull from in the next iteration; this worker itself: from none."""
        draw = np.random.default_rng((context.seed, context.group.rank, context.step)).random()
        ends = probabilities.cumsum(0) / probabilities.sum()
        return min(int(torch.searchsorted(ends, draw, right=True)), len(ends) - 1)

    def leave(self, context: MonitoredContext, state: State) -> Communication[None]:
        """Complete what is in flight, replace all models by their mean, and let nobody pull an older one."""
        for name in (_PULL, _POLICY):
            if context.is_in_flight(name):
                yield from context.wait_for(name)
        yield from super().leave(context, state)
        yield [_send(context, "replace", copies(context.parameters))]
        yield from context.mean([torch.zeros(1)])


def _smooth(times: Tensor, peer: int, seconds: float) -> None:
    known = float(times[peer])
    times[peer] = seconds if math.isnan(known) else _SMOOTHING * known + (1 - _SMOOTHING) * seconds


def _model(member: int) -> str:
    return f"model-{member}"


def _send(context: MonitoredContext, kind: str, tensors: Sequence[Tensor]) -> Any:
    return context.call(_model(context.group.rank), ActorMessage(kind, {}, tuple(tensors)), writes=True)


def _pulled(context: MonitoredContext, member: int) -> Communication[list[Tensor]]:
    (answer,) = yield [context.call(_model(member), ActorMessage("ask"), writes=False)]
    return list(answer.tensors)


def _report(context: MonitoredContext, times: Tensor) -> Communication[State]:
    """Send the times to the monitor, and return what its answer changes in the state."""
    fields: dict[str, Field] = {"worker": context.group.rank, "times": times.tolist()}
    (answer,) = yield [context.call(_MONITOR, ActorMessage("report", fields), writes=True)]
    row, strength = answer.fields["probabilities"], answer.fields["strength"]
    context.note(self_probability=float(row[context.group.rank]))
    return {
        "probabilities": torch.tensor(row, dtype=torch.float64),
        "strength": torch.tensor(strength, dtype=torch.float64),
    }
