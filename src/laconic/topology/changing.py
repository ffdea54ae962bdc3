"""Graphs that change from step to step: each step needs few messages, and a period connects all workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laconic.registry import knob, technique
from laconic.topology.base import Topology
from laconic.topology.mixing import Mixing, equal_weights, push_weights


@technique(
    "one_peer_exponential",
    aliases=["one_peer"],
    paper="Assran et al., ICML 2019 (SGP's graph)",
    holds="Ying et al., NeurIPS 2021: exact averaging after log2 n steps, for n = 2 to 128",
)
@dataclass(frozen=True)
class OnePeerExponential(Topology):
    """Send one message per worker and step, half of the model, to the worker 1, then 2, 4, 8, … places ahead.

    Among 2^m workers all agree after exactly m steps.
    """

    def lay_out(self, size: int, seed: int) -> Mixing:
        hops = [2**k for k in range((size - 1).bit_length())] or [0]
        return Mixing(tuple(push_weights(size, [(i, (i + hop) % size) for i in range(size)]) for hop in hops))


@technique("random_matching", aliases=["matching"], paper="Boyd et al., IEEE Trans. Information Theory 2006 (gossip)")
@dataclass(frozen=True)
class RandomMatching(Topology):
    """Draw random pairs of workers in every step, and average each pair; all workers draw from one seed.

    With an odd number of workers, one has no partner in each step.
    """

    period: int = knob(32, low=1, doc="pairings that are drawn before they repeat in the same order")

    def lay_out(self, size: int, seed: int) -> Mixing:
        rounds = []
        for step in range(self.period):
            order = np.random.default_rng((seed, step)).permutation(size).tolist()
            rounds.append(equal_weights(size, list(zip(order[::2], order[1::2], strict=False)), 0.5))
        return Mixing(tuple(rounds))
