"""`laconic bounds`: what convergence theory promises."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("bounds")(bounds)


def bounds(
    workers: Annotated[int, typer.Option(help="Workers, N.")] = 8,
    iterations: Annotated[int, typer.Option(help="Steps of each worker, T.")] = 100_000,
    epsilon: Annotated[float, typer.Option(help="The target: f - f* where convex or PL, |grad f|^2 else.")] = 0.01,
    smoothness: Annotated[float, typer.Option(help="L, the Lipschitz constant of the gradient.")] = 1.0,
    sigma: Annotated[float, typer.Option(help="Standard deviation of a stochastic gradient.")] = 1.0,
    gap: Annotated[float | None, typer.Option(help="f(x0) - f*.")] = 1.0,
    mu: Annotated[float | None, typer.Option(help="Strong convexity or PL constant, where there is one.")] = None,
    distance: Annotated[float | None, typer.Option(help="|x0 - x*|, where the objective is convex.")] = None,
    gradient_bound: Annotated[float | None, typer.Option(help="G with E|g|^2 <= G^2, where there is one.")] = None,
    tau_max: Annotated[float | None, typer.Option(help="Largest delay; default: from --speeds.")] = None,
    tau_avg: Annotated[float | None, typer.Option(help="Average delay; default: N - 1, all workers busy.")] = None,
    speeds: Annotated[str | None, typer.Option(help="Relative speeds of the workers, as 1,1,1,0.2.")] = None,
    model_bytes: Annotated[str | None, typer.Option(help="Size of the model, as 100MiB: adds bytes.")] = None,
    step_seconds: Annotated[
        str | None, typer.Option(help="Time of a step at speed 1, as 50ms; adds times, with --round-seconds.")
    ] = None,
    round_seconds: Annotated[
        str | None, typer.Option(help="Time of an average, or of a push and a pull, as 200ms.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the rounds, periods and iterations that convergence theory promises, and which method it prefers.

    Methods whose assumptions are not met by the options are listed with what they lack.
    """
    from laconic.report import bounds as report
    from laconic.theory.question import ask
    from laconic.theory.survey import survey

    asked = ask(
        workers=workers, iterations=iterations, epsilon=epsilon, smoothness=smoothness, sigma=sigma, mu=mu, gap=gap,
        distance=distance, gradient_bound=gradient_bound, tau_max=tau_max, tau_avg=tau_avg, speeds=speeds,
        model_bytes=model_bytes, step_seconds=step_seconds, round_seconds=round_seconds,
    )  # fmt: skip
    rows = survey(asked)
    if as_json:
        typer.echo(report.as_json(asked, rows))
    else:
        report.show(asked, rows)
