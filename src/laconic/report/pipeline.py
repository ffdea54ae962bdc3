"""What `laconic pipeline` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from laconic.errors import PipelineError
from laconic.files import write_text
from laconic.parallel.pipeline.costs import StageCosts
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, named
from laconic.parallel.pipeline.timeline import Timeline, timeline
from laconic.registry import Entry, entries
from laconic.report.page.pipeline import page
from laconic.units import write_seconds
from laconic.virtual.setup import VirtualSetup


def schedules() -> list[Entry]:
    """Return the entries of all schedules."""
    found = []
    for entry in entries("parallel"):
        if isinstance(entry.target, type) and issubclass(entry.target, PipelineSchedule):
            found.append(entry)
    return found


def print_list() -> None:
    """Print the schedules, with what each does."""
    table = Table("schedule", "what it does", "paper", box=box.MARKDOWN)
    for entry in schedules():
        about = " ".join((entry.target.__doc__ or "").split("\n\n")[0].split())
        table.add_row(entry.name, about.split(". ")[0].split(": ")[0], entry.paper)
    Console(width=max(120, Console().width)).print(table)


def print_orders(schedule: str, devices: int, microbatches: int) -> None:
    """Print each device's tasks, and what it holds."""
    made = named(schedule).pipeline(devices, microbatches)
    console = Console()
    for device, line in enumerate(str(made).splitlines()):
        held = f"holds {made.peak_in_flight[device]:g} microbatches at most"
        console.print(f"device {device} ({held}): {line}", markup=False, highlight=False, soft_wrap=True)
    if made.stashes:
        kept = ", ".join(map(str, made.peak_versions))
        console.print(f"versions of weights that stages keep: {kept}", markup=False, highlight=False)


def print_prices(
    schedules_given: Sequence[str] | None,
    devices: int,
    microbatches: int,
    forward: float,
    backward: float,
    activation_bytes: float,
    network: str | None,
) -> None:
    """Print what schedules take, the fastest first."""
    found: list[tuple[str, Pipeline, Timeline]] = []
    for word in schedules_given or [entry.name for entry in schedules()]:
        try:
            pipeline = named(word).pipeline(devices, microbatches)
        except PipelineError:
            if schedules_given:
                raise
            continue
        found.append((word, pipeline, _timed(pipeline, forward, backward, activation_bytes, network)))
    table = Table(
        "schedule", "time", "a microbatch", "idle", "microbatches held", "sent by all", "weights", box=box.MARKDOWN
    )
    where = f" on {network}" if network else ""
    table.title = f"{devices} devices{where}, {microbatches} microbatches, equal stages"
    for word, pipeline, times in sorted(found, key=lambda entry: entry[2].seconds):
        copies = sum(map(len, pipeline.holders)) / pipeline.stages * max(pipeline.peak_versions)
        table.add_row(
            word,
            write_seconds(times.seconds),
            write_seconds(times.seconds / microbatches),
            f"{times.bubble:.1%}",
            f"{min(pipeline.peak_in_flight):g} to {max(pipeline.peak_in_flight):g}",
            f"{sum(times.sent_bytes) / 1e6:.3g} MB",
            f"{copies:g}x",
        )
    Console(width=max(110, Console().width)).print(table)


def write_page(
    schedule: str,
    devices: int,
    microbatches: int,
    forward: float,
    backward: float,
    activation_bytes: float,
    network: str | None,
    out: Path,
) -> None:
    """Write the picture of a pipeline."""
    pipeline = named(schedule).pipeline(devices, microbatches)
    write_text(out, page(schedule, pipeline, _timed(pipeline, forward, backward, activation_bytes, network)))
    Console().print(f"{out}: open it in a browser", markup=False, highlight=False)


def _timed(
    pipeline: Pipeline, forward: float, backward: float, activation_bytes: float, network: str | None
) -> Timeline:
    count = pipeline.stages
    costs = StageCosts.equal(count, forward / count, backward / count, activation_bytes)
    links = VirtualSetup.read(network, pipeline.devices).network if network else None
    return timeline(pipeline, costs, links)
