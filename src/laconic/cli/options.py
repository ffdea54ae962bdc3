"""Options that several commands share: one meaning, one help text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

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
Extend = Annotated[
    list[str] | None,
    typer.Option(
        "--extend", metavar="FILE", help="A Python file, or a module, that registers techniques of yours; repeatable."
    ),
]


def extendable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option --extend, which imports techniques before the command begins."""

    @functools.wraps(command)
    def extended(*args: Any, extend: list[str] | None = None, **kwargs: Any) -> Any:
        if extend:
            from laconic import registry

            for source in extend:
                registry.extend(source)
        return command(*args, **kwargs)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("extend", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Extend)
    parameters = [*signature.parameters.values(), option]
    extended.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    extended.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del extended.__wrapped__  # type: ignore[attr-defined]
    return extended
