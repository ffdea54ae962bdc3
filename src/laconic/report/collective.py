"""The output of `laconic collective`: tables of programs, their steps and their prices."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from laconic.collective.formats.msccl_xml import from_msccl, to_msccl
from laconic.collective.formats.mscclpp_plan import to_mscclpp
from laconic.collective.formats.program_json import from_json, to_json
from laconic.collective.formats.program_text import to_text
from laconic.collective.generators import generators, make_program
from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.errors import ProgramError
from laconic.files import write_text
from laconic.report.page.collective import page
from laconic.units import write_seconds
from laconic.virtual.setup import VirtualSetup

FORMS: dict[str, Callable[[Program], str]] = {
    "text": to_text,
    "json": to_json,
    "msccl": to_msccl,
    "mscclpp": to_mscclpp,
}
"""The forms in which a program is shown."""

MOST_SENDS = 400
"""Programs of more sends are shown by their figures, without each of their steps."""


def print_list() -> None:
    """Print the programs and what each does."""
    table = Table("program", "collective", "what it does", box=box.MARKDOWN)
    for one in sorted(generators(), key=lambda one: (one.relation, one.name)):
        table.add_row(one.name, one.relation, inspect.cleandoc(one.make.__doc__ or "").splitlines()[0])
    Console(width=max(140, Console().width)).print(table)


def print_program(name: str, workers: int, inside: int, form: str = "text") -> None:
    """Print a program in one of its forms; as text without each of its steps where they are many."""
    if form not in FORMS:
        raise ProgramError(f"a program is shown as {', '.join(FORMS)}, not as {form!r}")
    program = make_program(name, workers, inside)
    if form != "text":
        print(FORMS[form](program))
        return
    lines = to_text(program).splitlines()
    shown = lines if len(program.sends) <= MOST_SENDS else [*lines[:2], "The steps are too many to be shown."]
    print("\n".join([*shown, "Proved: every rank ends with what the collective says, however messages arrive."]))


def verify_files(paths: Sequence[Path]) -> None:
    """Read programs, which proves them, and print what each is."""
    for path in paths:
        text = path.read_text(encoding="utf-8")
        program = from_msccl(text, where=path) if text.lstrip().startswith("<") else from_json(text, where=path)
        print(f"{path}: proved: {program.relation.name} of {program.size} ranks in {program.steps} steps")


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
