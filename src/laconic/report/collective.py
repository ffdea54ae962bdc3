"""The output of `laconic collective`: tables of programs, their steps and their prices."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from laconic.collective.generators import generators, make_program
from laconic.collective.price import price
from laconic.collective.program import REDUCE, Program
from laconic.errors import ProgramError
from laconic.files import write_text
from laconic.report.page.collective import page
from laconic.units import write_seconds
from laconic.virtual.setup import VirtualSetup

MOST_SENDS = 400
"""Programs of more sends are shown by their figures, without each of their steps."""


def print_list() -> None:
    """Print the programs and what each does."""
    table = Table("program", "collective", "what it does", box=box.MARKDOWN)
    for one in sorted(generators(), key=lambda one: (one.relation, one.name)):
        table.add_row(one.name, one.relation, inspect.cleandoc(one.make.__doc__ or "").splitlines()[0])
    Console(width=max(140, Console().width)).print(table)


def print_program(name: str, workers: int, inside: int) -> None:
    """Print a program's figures, and its steps where they are few."""
    program, console = make_program(name, workers, inside), Console(width=max(100, Console().width))
    sent = program.sent_shares
    console.print(
        f"{program.name}: {program.relation.name} of {program.size} ranks in {program.steps} steps, "
        f"{len(program.sends)} sends of {program.chunks} chunks; a rank sends {sent.min():.3g} to {sent.max():.3g} "
        "times its vector. Proved: every rank ends with what the collective says, however messages arrive."
    )
    if len(program.sends) <= MOST_SENDS:
        for line in steps_of(program):
            console.print(line, markup=False, highlight=False)


def steps_of(program: Program) -> list[str]:
    """Return a line for each step: `0→1 c2+` says that rank 0 sends chunk 2 to rank 1, which adds it."""
    lines = []
    for step, (begin, end) in enumerate(pairwise(program.bounds.tolist())):
        rows = program.sends.table[begin:end].tolist()
        sends = [f"{a}→{b} c{chunk}{'+' if op == REDUCE else ''}" for _, a, b, chunk, op in rows]
        lines.append(f"step {step}: {', '.join(sends)}")
    return lines


def print_prices(names: Sequence[str] | None, workers: int, inside: int | None, network: str, nbytes: float) -> None:
    """Print what programs take on a network, the fastest first."""
    links = VirtualSetup.read(network, workers).network
    hosts = inside if inside is not None else links.host_size if len(links.levels) > 1 else 1
    found = []
    for name in names or [one.name for one in generators("all_reduce")]:
        try:
            program = make_program(name, workers, hosts)
        except ProgramError:
            if names:
                raise
            continue
        found.append((price(program, nbytes, links), program))
    table = Table("program", "time", "sent by a rank", "steps", "over the busiest link's time", box=box.MARKDOWN)
    table.title = f"{workers} ranks on {network}, {nbytes / 1e6:g} MB"
    for cost, program in sorted(found, key=lambda entry: entry[0].seconds):
        over = f"{cost.seconds / cost.busiest_seconds:.2f}" if cost.busiest_seconds else ""
        sent = f"{cost.sent_bytes / 1e6:.3g} MB"
        table.add_row(program.name, write_seconds(cost.seconds), sent, str(program.steps), over)
    Console(width=max(100, Console().width)).print(table)


def write_page(name: str, workers: int, inside: int, out: Path) -> None:
    """Write the picture of a program."""
    write_text(out, page(make_program(name, workers, inside)))
    Console().print(f"{out}: open it in a browser", markup=False, highlight=False)
