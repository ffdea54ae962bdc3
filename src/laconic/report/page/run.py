"""The section of a run: what ran and how it ended, its steps' time in parts, its timeline, the ends of its logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laconic.liveness.detection import Lost
from laconic.report.page import breakdown, curves, timeline
from laconic.report.page.circumstances import command_line, versions
from laconic.report.page.html import Markup, as_csv, el, facts, save, tiles
from laconic.report.page.units import with_unit
from laconic.report.page.values import Run


def section(run: Run, anchor: str) -> Markup:
    """Return the section of a run, which links reach as `anchor`."""
    record = run.record
    result = record.get("result")
    result = result if isinstance(result, dict) else {}
    state = str(result.get("state", "not ended"))
    logs = [(run.name, [run.logged])] if run.logged else []
    bars = breakdown.of_timeline(run.timeline) if run.timeline is not None else []
    return el(
        "section",
        el("p", "Run", class_="kind"),
        el("h2", str(record.get("strategy") or "the script's own strategy")),
        el("p", _ended(state, result), class_="note" if state == "succeeded" else "warn"),
        tiles(_figures(run, result)),
        facts(_facts(run)),
        curves.section(logs, f"{anchor}-curves.csv"),
        *(el("p", note, class_="note") for note in run.notes),
        breakdown.block(
            bars,
            "A step's time, by the timeline",
            "From the second step on, medians of both parts; on real processes, coding is part of computing.",
        ),
        _steps_csv(bars, anchor),
        timeline.block(run.timeline) if run.timeline is not None else None,
        *(
            el(
                "details",
                el("summary", f"How the log {name} ends"),
                el("pre", tail, class_="log", tabindex="0"),
                open=state == "failed" and place == 0,
            )
            for place, (name, tail) in enumerate(run.logs.items())
        ),
        id=anchor,
    )


def _ended(state: str, result: Mapping[str, Any]) -> str:
    if state == "not ended":
        return "It has not ended, or was killed before it could record its end."
    lost = result.get("lost")
    ending = "It ended well." if state == "succeeded" else f"It {state}, with exit code {result.get('exit_code')}."
    if isinstance(lost, list) and lost:  # of a run with servers, which goes on without them
        return f"{ending} Lost during the run: {', '.join(map(str, lost))}."
    try:
        return f"{ending} {Lost(**lost).sentence()}" if isinstance(lost, dict) else ending
    except TypeError:
        return ending


def _figures(run: Run, result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    if run.logged:
        last = run.logged[-1].values
        found += [(f"{value:.4g}", f"final {name}", "") for name, value in list(last.items())[:2]]
    virtual, seconds, sent = result.get("virtual_seconds"), result.get("seconds"), result.get("sent_bytes")
    if isinstance(virtual, int | float):
        found.append((with_unit(virtual, "seconds"), "virtual time", ""))
    if isinstance(seconds, int | float):
        found.append((with_unit(seconds, "seconds"), "on the clock", "from start to end"))
    if isinstance(sent, list) and sent and all(isinstance(value, int | float) for value in sent):
        found.append((with_unit(sum(sent) / len(sent), "bytes"), "sent by a worker", "mean over workers"))
    return found


def _facts(run: Run) -> list[tuple[str, str | None]]:
    record = run.record
    network = record.get("network") or record.get("net")
    virtual = record.get("engine") == "virtual"
    slowness, targets = record.get("slowness"), record.get("targets")
    return [
        ("command", _command(record)),
        ("workers", f"{record.get('workers')} {'virtual' if virtual else 'processes'}"),
        ("servers", str(record["servers"]) if record.get("servers") else None),
        ("machines", str(record["nodes"]) if record.get("nodes", 1) != 1 else None),
        ("network", str(network) if network else "as the machine has it"),
        ("slowness", ", ".join(map(str, slowness)) if slowness else None),
        ("targets", ", ".join(f"{k} = {v}" for k, v in targets.items()) if isinstance(targets, dict) else None),
        ("started", record.get("started")),
        ("ended", record.get("ended")),
        ("versions", versions(record)),
        ("machine", record.get("machine")),
        ("folder", str(run.folder)),
    ]


def _command(record: Mapping[str, Any]) -> str | None:
    """Return the command to show: the worker's own where a comparison, not a person, started the run."""
    words = record.get("command")
    by_hand = isinstance(words, list) and words and not str(words[0]).endswith("child.py")
    return command_line(words if by_hand else record.get("worker_command"))


def _steps_csv(bars: list[breakdown.Bar], anchor: str) -> Markup | None:
    if not bars:
        return None
    rows = [[bar.name, bar.parts["computing"], bar.parts["exposed"]] for bar in bars]
    return save(as_csv(["worker", "computing_seconds", "waiting_seconds"], rows), f"{anchor}-steps.csv", "Steps as CSV")
