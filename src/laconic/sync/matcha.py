"""MATCHA: gossip mostly on the links that matter for agreement, within a budget of communication time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import MixingContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, copy_into
from laconic.topology.matchings import Activation, activation
from laconic.worker import Communication


@technique("matcha", paper="Wang, Sahu, Yang, Joshi, Kar, arXiv 1905.09435 (ICC 2019)")
@dataclass(frozen=True)
class MATCHA(Gossiping):
    """Step, then mix models over a few matchings of the topology's graph, drawn at random in every step.

    A matching is a set of links that can be used at the same time. Each matching has a probability, chosen once so that
    workers agree as fast as `budget` times the whole graph's time allows: bridges are used nearly always, dense parts
    rarely. The draws come from a common seed, so that no message is needed to agree on them. With budget 1 all links
    are used.
    """

    budget: float = knob(
        0.5, above=0, high=1, gentler="more", doc="share of the whole graph's communication time that is spent"
    )

    def check(self, context: MixingContext) -> None:
        context.mixing().must_be(self.name, "doubly", "symmetric", "static")

    def plan(self, context: MixingContext) -> Activation:
        """Return the matchings, their probabilities and the links' weight, computed once for a graph."""
        return activation(context.group.size, context.mixing().edges, self.budget)

    @torch.no_grad()
    def after_step(self, context: MixingContext, state: State) -> Communication[State]:
        matrix = self.plan(context).at(context.step, context.seed)
        copy_into(context.parameters, (yield from context.mix(copies(context.parameters), matrix)))
        return state
