"""`laconic cluster`: policies that share a cluster's GPUs among jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_Trace = Annotated[Path, typer.Argument(metavar="TRACE", help="A table of jobs as Philly's, or a TOML file.")]
_Policy = Annotated[str, typer.Option(help="A policy with its arguments, such as `fifo(backfill=true)`.")]
_Hosts = Annotated[int, typer.Option(help="Number of hosts.")]
_Gpus = Annotated[int, typer.Option(help="GPUs of each host.")]
_Tenant = Annotated[str | None, typer.Option(help="Whose jobs; default: everybody's.")]
_Restart = Annotated[float, typer.Option(help="Seconds that a job takes to start again after it was preempted.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the tool."""
    cluster = typer.Typer(
        help="Share a cluster's GPUs among jobs: policies on traces, under a virtual clock, and on a Ray cluster.",
        no_args_is_help=True,
    )
    cluster.command("list")(list_policies)
    for command in (replay, compare, plan, explain, run):
        cluster.command(command.__name__)(command)
    app.add_typer(cluster, name="cluster")


def list_policies() -> None:
    """List the policies, with what each does."""
    from laconic.report.cluster import print_policies

    print_policies()


def replay(
    trace: _Trace,
    policy: _Policy = "fifo",
    hosts: _Hosts = 16,
    gpus: _Gpus = 4,
    tenant: _Tenant = None,
    restart: _Restart = 30.0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A table to write, with a row for each job.")] = None,
) -> None:
    """Replay a trace under one policy: completion times, and where the time of jobs goes."""
    from laconic.report.cluster import print_replay

    print_replay(trace, policy, hosts, gpus, tenant, restart, out)


def compare(
    trace: _Trace,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", help="A policy with its arguments; give several, each with its own --policy."),
    ] = None,
    hosts: _Hosts = 16,
    gpus: _Gpus = 4,
    tenant: _Tenant = None,
    restart: _Restart = 30.0,
) -> None:
    """Compare policies on one trace, the shortest mean completion time first."""
    from laconic.report.cluster import print_comparison

    print_comparison(trace, policies or ["fifo", "fifo(backfill=true)", "srtf"], hosts, gpus, tenant, restart)


def plan(
    trace: _Trace,
    mean: Annotated[float | None, typer.Option(help="Seconds that jobs may take on average, waiting included.")] = None,
    slowest: Annotated[float | None, typer.Option(help="Seconds within which 99 % of the jobs are to be done.")] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", help="A policy with its arguments; give several, each with its own --policy."),
    ] = None,
    gpus: _Gpus = 4,
    tenant: _Tenant = None,
    restart: _Restart = 30.0,
) -> None:
    """Find how many hosts the jobs of a trace need to be done in time, by replays under each policy."""
    from laconic.report.cluster_plan import print_plan

    print_plan(trace, mean, slowest, policies or ["fifo", "fifo(backfill=true)", "srtf"], gpus, tenant, restart)


def explain(
    trace: _Trace,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name, such as job12.")],
    policy: _Policy = "fifo",
    hosts: _Hosts = 16,
    gpus: _Gpus = 4,
    tenant: _Tenant = None,
    restart: _Restart = 30.0,
    network: Annotated[
        str | None, typer.Option(help="The rate of every host's link to one switch, such as 10Gbit; default: no links.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The journal of a run, in place of a virtual one of its own.")
    ] = None,
) -> None:
    """Tell what became of one job: the six steps of the workflow, with their inputs and decisions."""
    from laconic.report.cluster_workflow import print_explanation

    print_explanation(trace, job, policy, hosts, gpus, tenant, restart, network, journal)


def run(
    jobs: Annotated[Path, typer.Argument(metavar="JOBS", help="A TOML file with a table `job` for each job.")],
    folder: Annotated[
        Path, typer.Option(help="Of the journal and of checkpoints, for all hosts; a run that was cut off goes on.")
    ],
    policy: _Policy = "fifo",
    hosts: _Hosts = 2,
    gpus: _Gpus = 2,
    address: Annotated[
        str | None,
        typer.Option(help="Of a Ray cluster whose nodes say which hosts they are; default: nodes of this machine."),
    ] = None,
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints of a job.")] = 60.0,
) -> None:
    """Run real jobs on a Ray cluster as a policy decides: gangs that are stopped, moved and resized."""
    from laconic.report.cluster import print_run

    print_run(jobs, folder, policy, hosts, gpus, address, save_every)
