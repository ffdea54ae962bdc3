"""Options that several commands share: one meaning, one help text."""

from __future__ import annotations

from typing import Annotated

import typer

SCRIPT = typer.Argument(metavar="SCRIPT", help="The training script.")

Script = Annotated[str, SCRIPT]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS", help="The script's own arguments, passed on unchanged.")
]
Engine = Annotated[str, typer.Option(help="real: processes; virtual: workers of one process in virtual time.")]
Network = Annotated[
    str | None, typer.Option(help="For virtual workers: a .toml file, or a rate such as 100Mbit (default 1Gbit).")
]
Net = Annotated[
    str | None, typer.Option(metavar="NAME", help="Place the workers on a network made by `laconic net up`.")
]
