"""The picture of a program: ranks across, steps downwards, a line for each chunk that is sent."""

from __future__ import annotations

from itertools import pairwise

from laconic.collective.program import REDUCE, Program
from laconic.report.page.document import document
from laconic.report.page.html import Child, Markup, as_csv, el, facts, save
from laconic.report.page.svg import colour, drawing, figure, legend, mark, path, segment, text

WIDE, NARROW = 1000.0, 340.0
_LEFT, _TOP, _ROW = 56.0, 30.0, 54.0
MOST_STEPS = 64
"""Steps beyond these are left out of the picture, which says so."""


def page(program: Program) -> str:
    """Return a page with a program's figures and its picture."""
    sent = program.sent_shares
    known = facts(
        [
            ("collective", program.relation.name),
            ("ranks", str(program.size)),
            ("chunks", str(program.chunks)),
            ("steps", str(program.steps)),
            ("sends", str(len(program.sends))),
            ("sent by a rank", f"{sent.min():.3g} to {sent.max():.3g} times its vector"),
        ]
    )
    about = f"A collective as a program of sends: {program.relation.name} of {program.size} ranks"
    footer = "The program is proved: every rank ends with what the collective says, however messages arrive."
    content = el("section", el("h2", program.name), known, _block(program), id="program")
    return document(program.name, about, [("program", program.name, content)], footer)


def _block(program: Program) -> Markup:
    wide, narrow = (_picture(program, width) for width in (WIDE, NARROW))
    signs = [(_sign(None), "added to what the rank holds"), (_sign("4 3"), "copied; colours tell chunks apart")]
    rows = as_csv(("step", "source", "destination", "chunk", "op"), program.sends.table.tolist())
    left_out = program.steps - MOST_STEPS
    note = el("p", f"The last {left_out} steps are left out.", class_="note") if left_out > 0 else None
    below = el("div", legend(signs), note, save(rows, "sends.csv", "Sends as CSV"))
    return figure(wide, narrow, "Who sends what to whom, step by step", below)


def _sign(dash: str | None) -> Markup:
    line = el("path", d="M1,7H29", class_="ln c0", stroke_dasharray=dash)
    return el("svg", line, viewBox="0 0 30 14", width=30, height=14, aria_hidden="true")


def _picture(program: Program, width: float) -> Markup:
    steps = min(program.steps, MOST_STEPS)
    height = _TOP + _ROW * steps + 12

    def across(rank: int) -> float:
        return _LEFT + (width - _LEFT - 20) * (rank / max(program.size - 1, 1))

    parts: list[Child] = [text(2, 14, "rank", "label")]
    parts += [text(across(rank), 14, str(rank), anchor="middle") for rank in range(program.size)]
    parts += [segment(across(rank), 20, across(rank), height - 6, "grid") for rank in range(program.size)]
    for step, (begin, end) in enumerate(pairwise(program.bounds[: steps + 1].tolist())):
        top = _TOP + _ROW * step
        parts.append(text(2, top + _ROW / 2, f"step {step}"))
        for _, source, destination, chunk, op in program.sends.table[begin:end].tolist():
            ends = [(across(source), top), (across(destination), top + _ROW * 0.85)]
            parts.append(path(ends, f"ln {colour(chunk)}", None if op == REDUCE else "4 3"))
            what = "adds" if op == REDUCE else "copies"
            tip = f"step {step}: rank {source} sends chunk {chunk} to rank {destination}, which {what} it"
            parts.append(mark(*ends[1], chunk, tip))
    return drawing(width, height, f"The steps of {program.name} among {program.size} ranks", *parts)
