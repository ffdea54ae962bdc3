"""Write docs/losses.md from the measured trainings that come with the package: tables, orderings, the map.

python docs/losses.py            # write
python docs/losses.py --check    # exit code 1 where the page is not what it would write
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from docs.pages import filled, keep  # noqa: E402

from laconic.frontier.answer import PROTOCOL, Frontier, answer  # noqa: E402
from laconic.planner.runs import read  # noqa: E402
from laconic.report.frontier import letters, orderings  # noqa: E402
from laconic.report.page.frontier_cells import LINE_COLUMNS, about, line_cells, warnings  # noqa: E402

PAGE = Path(__file__).resolve().parent / "losses.md"
HEAD = "# What strategies do to the loss"
ABOUT = (
    "Written by `python docs/losses.py` from `src/laconic/planner/measured/runs/`, where every training is a "
    "line with its device, seed, command and commit. `python bench/ladder.py RUNG` makes the rows and goes on "
    f"where it was; `bench/rungs.toml` names models, methods and rates. {PROTOCOL} How to read the columns: "
    "[the frontier](frontier.md); what is trained: [tasks](tasks.md). All workers are virtual ones with real "
    "gradients and counted bytes; masters are fp32, matrix products bf16, gradients are clipped to a norm of "
    "1, matrices have a weight decay of 0.1, the rate rises over 5 % of the steps and falls along a cosine to "
    "a tenth. Seeds from 4 on are of a text that is the same on every machine, earlier ones of texts that depended on "
    "what was installed; methods are paired on the same seed and text.",
    "**What these rows do not say.** Two small models so far, of 3 and 11 M parameters: rounds of 30 steps are "
    "only 50 and 100, where the papers on rare exchanges have hundreds, at models whose gaps they report to shrink "
    "with size. The larger model was also trained longer for its size (18 tokens a parameter for 7.4), so that a gap "
    "that shrinks from one to the other may shrink by either. A trend of these two is all that the map has beyond "
    "them, for models that nobody would train so briefly. "
    "Outer rates were not tuned (0.7, momentum 0.9). An ordering that is refuted here is refuted at these "
    "settings. No run should pass more than twice over its text. Those of depth with seed 4 and 3,000 steps (`bsp` and "
    "SparseLoCo) passed 3.4 times over theirs, of 57,911,533 bytes to train on; on other seeds the size of "
    "the text was not recorded. The text of 200 MB that `bench/corpus.py` makes by itself would be passed over 0.13 "
    "times in breadth and 1.0 times in depth. The ladder refuses such runs now, and rows say their `epochs`.",
    "Rows also have curves, validated at ten steps. The last point is what `laconic.finish` ships; the earlier ones of "
    "the rows that are there (`curve_of` is missing) are worker 0's own model, which between two meetings of a rule "
    "with local steps is not what would be shipped. New rows have the shipped model at every point: all that the "
    "training remembers is kept, workers meet, and it goes on from what was kept, to the bit. Where servers hold the "
    "model (rules on `ps` such as `asp`; of the ladder's methods `mipd` alone) or the order of arrivals decides "
    "(`hogwild`), that cannot be done, and the last point stands alone.",
    "The rows that are there do not say the noise scale of their gradients, which new ones do. In 100 steps of the "
    "small model's `bsp` on a CPU, with a schedule of their own, a rate of 0.002 and one seed, single estimates from "
    "eight workers went from 2,300 tokens at step 10 over 2,900 to 8,200 at steps 20 to 60 up to 31,000 at step 100: "
    "a batch of 16,384 is above the noise scale in the first steps, and about as large or smaller after 70.",
)


def page() -> str:
    """Return the whole page."""
    tasks = dict.fromkeys(run.task for run in read())
    said = map(filled, ABOUT)
    return (
        "\n\n".join([HEAD, *said, *(part for task in tasks for part in sections(answer(task, "1gbit", 8, "1b")))])
        + "\n"
    )


def sections(found: Frontier) -> Iterator[str]:
    """Yield a task's tables, its orderings and its map."""
    yield f"## {found.task}"
    for table in found.tables:
        yield about(table)[0].upper() + about(table)[1:] + "."
        yield grid(LINE_COLUMNS, [line_cells(table, line) for line in table.lines])
        if notes := list(warnings(table)):
            yield "\n".join(f"- {note}" for note in notes)
    yield grid(("ordering", "verdict", "pairs"), list(orderings(found)))
    for table, one in found.short:
        yield (
            f"{table.title}: among {one.methods} methods within 5 % of DDP, DDP itself among them, runs of "
            f"{100 * one.share:.3g} % of the steps cost {100 * one.regret:.2f} % of loss where one chooses by them; "
            f"{one.ranked}."
        )
    if found.map is not None:
        yield "The fastest method for certain to the loss of tuned DDP, by bandwidth and size (· nothing pays):"
        yield "\n".join(["```", *letters(found.map), "```"])


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def written() -> dict[Path, str]:
    """Return the page that this command writes, with its text."""
    return {PAGE: page()}


if __name__ == "__main__":
    sys.exit(keep(__doc__, written()))
