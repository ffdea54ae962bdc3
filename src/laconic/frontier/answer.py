"""What `laconic frontier` answers: a task's tables, orderings and map, and one place on the map."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from laconic.frontier.ledger import disagreements
from laconic.frontier.map import Cell, Map, Offer, contenders, draw
from laconic.frontier.orderings import Judged, judge
from laconic.frontier.shapes import read_size, write_size
from laconic.frontier.short import ShortRuns, short_runs
from laconic.frontier.tables import FrontierError, Table, tables
from laconic.planner.runs import FOLDER, read
from laconic.units import bits_per_second, write_rate

PROTOCOL = (
    "Not made by PROTOCOL 2: rates are chosen among a few on a seed and a short schedule of their own (not seven on "
    "three seeds), and reported on other seeds, paired."
)


@dataclass(frozen=True)
class Frontier:
    """The answer: `here` is the asked place, `map` all places; both are None where `why_no_map` says why."""

    task: str
    workers: int
    rate: float
    size: float
    tables: tuple[Table, ...]
    judged: tuple[Judged, ...]
    short: tuple[tuple[Table, ShortRuns], ...]
    map: Map | None = None
    here: Cell | None = None
    why_no_map: str = ""
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{write_rate(self.rate)}, {write_size(self.size)} parameters, {self.workers} workers"

    @property
    def verdict(self) -> str:
        """What to do at the asked place, in a sentence or two."""
        if self.here is None:
            return f"There is no map: {self.why_no_map}."
        best = self.here.best
        if best is None:
            kept = f"Nothing pays for certain at {self.place}: keep tuned DDP with 16-bit gradients."
            near = [offer for offer in self.here.offers if offer.reaches]
            return f"{kept} {self._nearest(near[0]) if near else 'No method ends near enough to its loss.'}"
        rests = {
            "measured": "by losses measured at this size",
            "trend": f"by losses measured up to {write_size(self.largest)} and their trend",
            "last rung": f"by losses measured up to {write_size(self.largest)}, without a trend",
        }
        gain = best.speed_up
        return (
            f"`{best.name}` reaches the loss of tuned DDP {gain.middle:.3g} times as fast at {self.place} "
            f"({gain.low:.3g} to {gain.high:.3g}), {rests[best.basis]}."
        )

    def _nearest(self, first: Offer) -> str:
        gain = first.speed_up
        ends = "an unknown interval" if gain.low != gain.low else f"{gain.low:.3g} to {gain.high:.3g}"
        return f"In the mean `{first.name}` is the fastest, {gain.middle:.3g} times as fast ({ends})."

    @property
    def largest(self) -> float:
        return float(max(table.parameters for table in self.tables))


def answer(task: str, network: str, workers: int, size: str, folder: Path = FOLDER) -> Frontier:
    """Return the answer for a task, a network's rate, a number of workers and a size of model."""
    rate, parameters = bits_per_second(network), read_size(size)
    if workers < 2:
        raise FrontierError(f"{workers} worker exchanges nothing: write --workers 8")
    found = tables(read(folder), task, folder)
    judged = judge(found)
    short = tuple((table, one) for table in found for one in short_runs(table))
    common = (task, workers, rate, parameters, found, judged, short)
    if any(table.kind != "transformer" for table in found):
        return Frontier(*common, why_no_map=f"times are those of transformers, and {task} trains another kind of model")
    try:
        contending = contenders(found, task, workers)
    except FrontierError as error:
        return Frontier(*common, why_no_map=str(error))
    here = draw(contending, task, workers, (rate,), (parameters,)).cells[0]
    return Frontier(*common, draw(contending, task, workers), here, notes=tuple(disagreements(contending, workers)))
