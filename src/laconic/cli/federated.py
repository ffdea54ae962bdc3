"""`laconic federated`: learning with many clients, whose data stays with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_What = "A federated sentence such as `fedavg(clients=10) / topk(0.05)+ef`, or a .toml file"
_Several = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SENTENCE]...", help=f"{_What} that comes before the sentences, or has some itself."),
]
_Task = Annotated[
    str | None, typer.Option(help="A task by name (digits, shakespeare), or a function's place: tasks.py:mine.")
]
_Clients = Annotated[int | None, typer.Option(help="How many clients there are; default 100.")]
_Partition = Annotated[
    str | None, typer.Option(help="iid, dirichlet (the default), by_label, by_quantity, or natural.")
]
_Concentration = Annotated[
    float | None, typer.Option(help="Of dirichlet and by_quantity: the smaller, the more clients differ; default 0.5.")
]
_Up = Annotated[str | None, typer.Option(help="The rate at which a client sends; default 10Mbit.")]
_Down = Annotated[str | None, typer.Option(help="The rate at which a client receives; default 50Mbit.")]
_Rate = Annotated[float | None, typer.Option(help="The clients' learning rate; default 0.1.")]
_Steps = Annotated[int | None, typer.Option(help="Steps of the server: rounds, where it waits; default 100.")]
_Target = Annotated[
    str | None, typer.Option(help="A score to which steps, time and bytes are counted, as accuracy=0.9.")
]
_Seed = Annotated[int | None, typer.Option(help="Of everything that is drawn; default 0.")]
_Out = Annotated[Path | None, typer.Option(metavar="FILE", help="A JSON file to write, with all that was counted.")]
_Page = Annotated[
    Path | None, typer.Option(metavar="FILE", help="An HTML page to write: who holds what, and how training went.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the tool."""
    federated = typer.Typer(
        help="Learn with many clients whose data stays with them: rules, compression and populations, priced and run.",
        no_args_is_help=True,
    )
    for command in (run, compare, plan):
        federated.command(command.__name__)(command)
    app.add_typer(federated, name="federated")


def run(
    what: Annotated[str | None, typer.Argument(metavar="[SENTENCE|FILE]", help=f"{_What} that has one.")] = None,
    task: _Task = None,
    clients: _Clients = None,
    partition: _Partition = None,
    concentration: _Concentration = None,
    up: _Up = None,
    down: _Down = None,
    rate: _Rate = None,
    steps: _Steps = None,
    target: _Target = None,
    seed: _Seed = None,
    out: _Out = None,
    page: _Page = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Train between so many processes of this machine and a server, not on virtual clients."
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="With --processes: for keys, snapshots and logs; a run that was cut off goes on.")
    ] = Path("federated-run"),
) -> None:
    """Train with virtual clients that really train, under a virtual clock, or between processes."""
    from laconic.report.federated import print_run

    given = {
        "task": task, "clients": clients, "partition": partition, "concentration": concentration, "up": up,
        "down": down, "rate": rate, "steps": steps, "target": target, "seed": seed,
    }  # fmt: skip
    print_run(what, out, page, given, processes, folder)


def compare(
    what: _Several = None,
    task: _Task = None,
    clients: _Clients = None,
    partition: _Partition = None,
    concentration: _Concentration = None,
    up: _Up = None,
    down: _Down = None,
    rate: _Rate = None,
    steps: _Steps = None,
    target: _Target = None,
    seed: _Seed = None,
    out: _Out = None,
    page: _Page = None,
) -> None:
    """Compare sentences on the same clients: scores, time, and bytes up and down, to a target where one is given."""
    from laconic.report.federated import print_comparison

    given = {
        "task": task, "clients": clients, "partition": partition, "concentration": concentration, "up": up,
        "down": down, "rate": rate, "steps": steps, "target": target, "seed": seed,
    }  # fmt: skip
    print_comparison(what or [], out, page, given)


def plan(
    what: _Several = None,
    task: _Task = None,
    clients: _Clients = None,
    partition: _Partition = None,
    concentration: _Concentration = None,
    up: _Up = None,
    down: _Down = None,
    parameters: Annotated[
        float | None, typer.Option(help="Plan a model of this size in place of the task's, as 11e6.")
    ] = None,
    samples: Annotated[int, typer.Option(help="With --parameters: how many samples each client holds.")] = 100,
    seed: _Seed = None,
    out: _Out = None,
) -> None:
    """Predict the bytes of a client and the time of a round, without training."""
    from laconic.report.federated import print_plan

    given = {
        "task": task, "clients": clients, "partition": partition, "concentration": concentration, "up": up,
        "down": down, "seed": seed,
    }  # fmt: skip
    print_plan(what or [], parameters, samples, out, given)
