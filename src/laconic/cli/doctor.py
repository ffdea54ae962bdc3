"""`laconic doctor`: what this machine can do."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("doctor")(doctor)


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list with one object for each finding.")
    ] = False,
) -> None:
    """List what this machine can do, what is missing, what that would enable and how to get it.

    The exit code is 1 when something is missing without which nothing trains.
    """
    from laconic.launch.doctor import examine

    findings = list(examine())
    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = typer.style("ok     ", fg="green") if finding.ok else typer.style("missing", fg="yellow")
            facts = (finding.found, finding.enables, "" if finding.ok else f"to get it: {finding.remedy}")
            typer.echo(f"{mark}  {finding.name:{width}}  {' · '.join(fact for fact in facts if fact)}")
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(1)
