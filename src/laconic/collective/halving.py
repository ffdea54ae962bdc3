"""Halving and doubling: ranks exchange with partners at distances that are powers of two."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from laconic.collective.compose import gather_after_scatter
from laconic.collective.generators import generator
from laconic.collective.program import COPY, REDUCE, Program, Send
from laconic.collective.relation import all_gather, all_reduce, reduce_scatter
from laconic.errors import ProgramError


@generator("halving_doubling", row="rhd_allreduce", paper="Rabenseifner, ICCS 2004; Thakur et al., 2005")
def halving_doubling(size: int) -> Program:
    """Halve what is still to be added with a partner half as far away each time, then double it back.

    It sends a ring's bytes in 2 log2(p) steps. Of p that is no power of two, pairs of ranks first add up in one of
    them, which has the sum returned at the end.
    """
    core = 2 ** (size.bit_length() - 1)
    if core == size:
        return gather_after_scatter(halving(size), "halving_doubling")

    def exchange() -> Iterator[Send]:
        scatter = halving(core).sends.table.tolist()
        last = len(scatter) and scatter[-1][0]
        yield from scatter
        for step, source, destination, chunk, _ in reversed(scatter):
            yield 2 * last + 1 - step, destination, source, chunk, COPY

    return _folded("halving_doubling", size, core, exchange)


@generator("near_first_halving", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def near_first(size: int) -> Program:
    """Halving with the nearest partner first, so that the largest messages travel the shortest way."""
    _power_of_two("near_first_halving", size)
    return gather_after_scatter(halving(size, near=True), "near_first_halving")


@generator("recursive_doubling", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def recursive_doubling(size: int) -> Program:
    """Exchange whole vectors with partners at doubled distances: log2(p) steps, for small vectors."""
    core = 2 ** (size.bit_length() - 1)

    def exchange() -> Iterator[Send]:
        for step in range(core.bit_length() - 1):
            for rank in range(core):
                for chunk in range(core):
                    yield step, rank, rank ^ 2**step, chunk, REDUCE

    return _folded("recursive_doubling", size, core, exchange)


@generator("doubling_gather", relation="all_gather", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def doubling_gather(size: int) -> Program:
    """Exchange all blocks gathered so far with partners at doubled distances, where p is a power of two."""
    _power_of_two("doubling_gather", size)
    rows = [
        (step, rank, rank ^ 2**step, (rank & -(2**step)) + block, COPY)
        for step in range(size.bit_length() - 1)
        for rank in range(size)
        for block in range(2**step)
    ]
    return Program.of("doubling_gather", all_gather(size, size), rows)


@generator("halving_scatter", relation="reduce_scatter", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def halving_scatter(size: int) -> Program:
    """Add up half of what is left with a partner half as far away each time, where p is a power of two."""
    _power_of_two("halving_scatter", size)
    return halving(size)


def halving(size: int, near: bool = False) -> Program:
    """Return the reduce-scatter: each step adds up half of the chunks that a rank still has, with its partner."""
    distances = [2**k for k in range(size.bit_length() - 1)]
    distances = distances if near else distances[::-1]
    rows: list[Send] = []
    for step, distance in enumerate(distances):
        decided = sum(distances[:step])
        for rank in range(size):
            partner = rank ^ distance
            mask = decided | distance
            rows += [(step, rank, partner, c, REDUCE) for c in range(size) if c & mask == partner & mask]
    return Program.of("halving", reduce_scatter(size, size), rows)


def _folded(name: str, size: int, core: int, exchange: Callable[[], Iterator[Send]]) -> Program:
    """Return an all-reduce among a power of two of the ranks, to which the others add theirs before and from which they
    get the sum after. Of the first pairs of ranks the odd one takes part."""
    extra = size - core
    member = [2 * k + 1 if k < extra else k + extra for k in range(core)]
    rows: list[Send] = [(0, 2 * k, 2 * k + 1, c, REDUCE) for k in range(extra) for c in range(core)]
    last = 0
    for step, source, destination, chunk, op in exchange():
        rows.append((1 + step, member[source], member[destination], chunk, op))
        last = max(last, 1 + step)
    rows += [(last + 1, 2 * k + 1, 2 * k, c, COPY) for k in range(extra) for c in range(core)]
    return Program.of(name, all_reduce(size, core), rows)


def _power_of_two(name: str, size: int) -> None:
    if size & (size - 1):
        raise ProgramError(f"{name} needs a power of two of ranks, not {size}; take another program")
