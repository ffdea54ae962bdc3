"""The all-reduces of gloo, the library that carries tensors between processes on CPUs, as programs."""

from __future__ import annotations

from contextlib import suppress

from laconic.collective.compose import gather_after_scatter, pipeline
from laconic.collective.generators import generator
from laconic.collective.grids import grid_scatter
from laconic.collective.halving import halving_doubling
from laconic.collective.program import Program
from laconic.collective.rings import ring
from laconic.errors import ProgramError
from laconic.registry import technique


@technique(
    "gloo",
    axis="architecture",
    paper="Gloo, github.com/facebookincubator/gloo, 2017",
    why_no_word="It carries every sentence between processes on CPUs, through torch.distributed; its variants train as "
    "`collective(ring_chunked)`, `collective(halving_doubling)` and `collective(bcube)`.",
)
def variants(size: int) -> dict[str, Program]:
    """Return gloo's variants of an all-reduce for so many ranks: ring, ring in two chunks, halving-doubling, bcube.

    Reading chosen: of a number of ranks that is no power of two, halving-doubling first adds up pairs of ranks, where
    gloo works in blocks of powers of two; bcube is there where the number is a power of its base.
    """
    found = {"ring": ring(size), "ring_chunked": ring_chunked(size), "halving_doubling": halving_doubling(size)}
    with suppress(ProgramError):
        found["bcube"] = bcube(size)
    return found


@generator("ring_chunked", paper="Gloo, github.com/facebookincubator/gloo, 2017")
def ring_chunked(size: int) -> Program:
    """A ring of two chunks a rank, one a step behind the other: one is added up while the other is on its way."""
    return pipeline(ring(size), 2, name="ring_chunked")


@generator("bcube", paper="Gloo, github.com/facebookincubator/gloo, 2017")
def bcube(size: int, base: int = 2) -> Program:
    """Exchange directly with the base - 1 peers of one digit after another: 2 log_base(p) steps."""
    digits, reached = 0, 1
    while reached < size:
        digits, reached = digits + 1, reached * base
    if reached != size:
        raise ProgramError(f"bcube of base {base} is for a power of it, not for {size} ranks")
    return gather_after_scatter(grid_scatter([base] * digits or [1], direct=True), "bcube")
