"""The page of a federated run: who holds what, and how the model became better with every byte."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laconic.federated.outcome import FederatedOutcome
from laconic.federated.partition import Integers
from laconic.report.page.axes import axis_for
from laconic.report.page.document import document
from laconic.report.page.html import Child, Markup, as_csv, el, facts, save
from laconic.report.page.svg import Frame, colour, dash, drawing, figure, legend, path, swatch, text

WIDE, NARROW = 1000.0, 340.0
MOST_CLIENTS = {WIDE: 80, NARROW: 20}
"""How many clients a picture shows: the first ones."""
_LEFT, _TOP, _ROW = 44.0, 30.0, 22.0

Runs = Sequence[tuple[str, FederatedOutcome]]


def page(task: str, partition: str, counts: Integers, runs: Runs) -> str:
    """Return a page about a federated run.

    - `counts`: how many samples of each label (a column) every client (a row) holds.
    - `runs`: the sentences and what came of them.
    """
    chapters = [("shards", "Who holds what", shards_section(counts))]
    if scores := list(dict.fromkeys(name for _, outcome in runs for step in outcome.steps for name in step.scores)):
        chapters.append(("scores", "Scores over bytes", _scores_section(runs, scores)))
    about = f"Federated learning of {task} by {len(counts):,} clients, {partition}"
    footer = "Bytes are those of payloads that clients send; every client counts."
    return document(f"federated {task}", about, chapters, footer)


def shards_section(counts: Integers) -> Markup:
    """Return the picture of who holds how many samples of which label."""
    sizes = counts.sum(1)
    labels = (counts > 0).sum(1)
    known = facts(
        [
            ("clients", f"{len(counts):,}"),
            ("samples", f"{int(sizes.sum()):,}"),
            ("samples of a client", f"{sizes.min():,} to {sizes.max():,}, half have at most {np.median(sizes):g}"),
            ("labels of a client", f"{labels.min()} to {labels.max()}, {labels.mean():.3g} in the mean"),
        ]
    )
    wide, narrow = (_circles(counts, width) for width in (WIDE, NARROW))
    rows = [(client, label, int(n)) for client, row in enumerate(counts) for label, n in enumerate(row) if n]
    left_out = len(counts) - MOST_CLIENTS[WIDE]
    note = el("p", f"{left_out:,} more clients are left out of the picture.", class_="note") if left_out > 0 else None
    below = el("div", note, save(as_csv(("client", "label", "samples"), rows), "shards.csv", "Shards as CSV"))
    caption = "Samples of each label (a row) that each client (a column) holds: the area of a circle is their number"
    return el("section", el("h2", "Who holds what"), known, figure(wide, narrow, caption, below), id="shards")


def _circles(counts: Integers, width: float) -> Markup:
    shown = counts[: MOST_CLIENTS[width]]
    across, height = (width - _LEFT - 10) / max(len(shown), 1), _TOP + _ROW * counts.shape[1] + 12
    most, largest = max(int(shown.max(initial=0)), 1), min(across, _ROW) / 2 - 0.5
    parts: list[Child] = [text(2, 14, "label", "label"), text(width - 10, 14, "client", "label", "end")]
    for client in range(0, len(shown), max(1, len(shown) // 16)):
        parts.append(text(_LEFT + across * (client + 0.5), 14 if client == 0 else 26, str(client), anchor="middle"))
    for label in range(counts.shape[1]):
        middle = _TOP + _ROW * (label + 0.5)
        parts.append(text(_LEFT - 8, middle + 4, str(label), anchor="end"))
        for client in np.flatnonzero(shown[:, label]).tolist():
            held = int(shown[client, label])
            tip = el("title", f"client {client}: {held} of label {label}")
            radius = largest * (held / most) ** 0.5
            place = _LEFT + across * (client + 0.5)
            parts.append(el("circle", tip, cx=place, cy=middle, r=radius, class_=f"mk {colour(label)}"))
    alt = f"{len(shown)} clients by {counts.shape[1]} labels; the largest circle has {most} samples."
    return drawing(width, height, alt, *parts)


def _scores_section(runs: Runs, scores: Sequence[str]) -> Markup:
    rows = [
        (name, number, step.seconds, step.up_bytes, step.down_bytes, *(step.scores.get(score, "") for score in scores))
        for name, outcome in runs
        for number, step in enumerate(outcome.steps, 1)
        if step.scores
    ]
    headings = ("sentence", "step", "seconds", "up_bytes", "down_bytes", *scores)
    plots = [
        figure(_curves(runs, score, WIDE), _curves(runs, score, NARROW), f"{score} over the bytes that were sent up")
        for score in scores
    ]
    signs = legend([(swatch(place), name) for place, (name, _) in enumerate(runs)])
    saved = save(as_csv(headings, rows), "scores.csv", "Scores as CSV")
    return el("section", el("h2", "Scores over bytes"), *plots, signs, saved, id="scores")


def _curves(runs: Runs, score: str, width: float) -> Markup:
    lines = [
        [(float(step.up_bytes), step.scores[score]) for step in outcome.steps if score in step.scores]
        for _, outcome in runs
    ]
    points = [point for line in lines for point in line]
    x_axis = axis_for([x for x, _ in points], "bytes", "sent up", log=True)
    frame = Frame(x_axis, axis_for([y for _, y in points], "plain", score), width, 300)
    drawn = [
        path([(frame.x(x), frame.y(y)) for x, y in line], f"ln {colour(place)}", dash(place))
        for place, line in enumerate(lines)
        if line
    ]
    return drawing(width, 300, f"{score} over bytes of {len(runs)} sentences.", frame.axes(), *drawn)
