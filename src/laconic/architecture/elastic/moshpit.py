"""Moshpit SGD: averages in small groups that change every round, in which peers may die."""

from __future__ import annotations

from collections.abc import Iterable

from laconic.architecture.elastic.matchmaker import Matchmaker
from laconic.architecture.elastic.seats import Grid
from laconic.registry import technique


@technique(
    "moshpit_sgd",
    axis="architecture",
    aliases=["moshpit", "moshpit_all_reduce"],
    paper="Ryabinin, Gorbunov, Plokhotnyuk, Pekhimenko, NeurIPS 2021, arXiv 2103.03239",
    why_no_word=(
        "The workers of a sentence with gossip or all-reduce are a process group, which cannot lose a member, and no "
        "launcher starts a matchmaker beside workers without one: a script averages its model by `ElasticClient` every "
        "few local steps, and `cooperative_sgd(4) / none / gossip / random_matching` trains in changing groups of two."
    ),
)
def moshpit(members: Iterable[int], dims: int = 2) -> Matchmaker:
    """Return the matchmaker of averages on a grid, in rounds of small groups that change, whoever dies meanwhile.

    Serve it where it outlives the workers. Each of these hosts a `Member` and averages through an `ElasticClient`:
    Moshpit SGD is one such round, or `dims` of them, after every few local steps. M^dims workers without a failure hold
    the exact mean after dims rounds; a group of P sends 2(P - 1)/P of the vector per member and round.

    Readings chosen: the matchmaker stands for the paper's distributed hash table, and the time window in which peers
    are found is the heartbeat's: a member that is there is waited for, one that is silent is not. With one in a hundred
    of 512 failing per round, two times round the grid leave 7 to 19 times less distance to consensus than gossip of
    random pairs for the same bytes, and four times at least ten; the exponential graph stays 3 to 7 times as far away.

    - `members`: the ranks of the workers that are there from the beginning; others may enter later.
    - `dims`: the dimensions of the grid.
    """
    return Matchmaker(Grid(dims), members)
