"""The output of `laconic plan --parallel`: the fastest layouts, and the memory of the best one's stages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from laconic.parallel.hybrid.runs import RECOMPUTE
from laconic.parallel.hybrid.search import Choice
from laconic.planner.layouts import LayoutAdvice, Stages, plan_layouts
from laconic.planner.plan import DEFAULT_NETWORK, read_memory
from laconic.planner.values import PlanError
from laconic.report.page.units import number, with_unit
from laconic.report.validation_sections import table

_HEADINGS = (
    *("strategy across dp", "recomputed", "schedule", "optimizer", "pp", "tp", "dp", "microbatch", "iteration"),
    *("bubble", "gradients", "memory"),
)
_PIPED = 160  # columns, where standard output is no terminal


def run(
    subject: str,
    as_json: bool,
    *,
    gpus: int,
    network: str | None,
    gpus_per_host: int | None,
    gpu: str | None,
    latency: str | None,
    batch: int | None,
    gpu_memory: str | None,
    strategies: Sequence[str],
    top: int,
) -> None:
    """Search with the options of the command line, and print what was found."""
    if gpus < 1 or top < 1 or (batch is not None and batch < 1):
        raise PlanError("--gpus, --batch and --top are one or more")
    advice = plan_layouts(
        subject,
        gpus=gpus,
        network=DEFAULT_NETWORK if network is None else network,
        gpus_per_host=gpus_per_host,
        gpu_name=gpu,
        latency=latency,
        batch=batch,
        memory_bytes=None if gpu_memory is None else read_memory(gpu_memory),
        strategies=strategies,
        top=top,
    )
    if as_json:
        sys.stdout.write(advice.to_json())
    else:
        show(advice)


def show(advice: LayoutAdvice, console: Console | None = None) -> None:
    """Print the layouts as a table, then the stages of the best."""
    console = console or Console(width=None if sys.stdout.isatty() else _PIPED)
    console.print(
        Text(
            f"{advice.subject}: {advice.model.parameters / 1e9:,.1f} billion parameters on {advice.gpus} {advice.gpu}, "
            f"batch {advice.batch}; layouts priced: {advice.priced:,}, of which {advice.fitting:,} fit into "
            f"{_gib(advice.limit_bytes)} of each GPU."
        ),
        soft_wrap=True,
    )
    if not advice.choices:
        console.print(Text(f"None fits: the leanest needs {_gib(advice.least_bytes)} on a GPU."), soft_wrap=True)
    else:
        console.print(table("", _HEADINGS, [_row(choice) for choice in advice.choices], left=4))
        console.print(table("memory of the first layout, by stage", _STAGES, _stage_rows(advice.stages)))
        used = f"The first uses {100 * advice.utilisation:.1f} % of the GPUs' peak, without what is computed again."
        console.print(Text(used), soft_wrap=True)
    for note in advice.notes:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)


_STAGES = ("stages", "weights", "gradients", "optimizer", "activations", "in all")


def _row(choice: Choice) -> list[str]:
    layout = choice.layout
    schedule = "1F1B" if layout.pipeline > 1 else "one stage"
    return [
        choice.strategy,
        RECOMPUTE[layout.recompute],
        schedule if layout.chunks == 1 else f"interleaved × {layout.chunks}",
        "sharded" if layout.sharded else "whole",
        *map(str, (layout.pipeline, layout.tensor, layout.data, layout.microbatch)),
        *(with_unit(value, "seconds") for value in (choice.seconds, choice.bubble_seconds, choice.gradient_seconds)),
        _gib(choice.memory_bytes),
    ]


def _stage_rows(stages: Sequence[Stages]) -> list[list[str]]:
    """Return a row for each run of equal stages."""
    rows = []
    for stage, alike in groupby(enumerate(stages), key=lambda pair: pair[1]):
        numbers = [k for k, _ in alike]
        name = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"
        parts = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.total)
        rows.append([name, *map(_gib, parts)])
    return rows


def _gib(nbytes: float) -> str:
    return f"{number(nbytes / 2**30)} GiB"
