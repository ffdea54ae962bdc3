"""The output of `laconic cluster explain`: the six steps of one job, whenever something of it changed."""

from __future__ import annotations

import math
from pathlib import Path

from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.journal import read
from laconic.cluster.outcome import PARTS
from laconic.cluster.replay import Costs
from laconic.cluster.workflow.explain import Explained, Moment, as_workflow, explain_journal, explain_run
from laconic.cluster.workflow.workflow import Workflow
from laconic.errors import ClusterError
from laconic.language.grammar import parse_policy
from laconic.network.datacenter_graphs import star
from laconic.report.cluster import jobs_that_fit
from laconic.units import bits_per_second

STEPS = ("profile", "allocate", "order", "arrange", "flows", "run")


def print_explanation(
    trace: Path,
    name: str,
    policy: str,
    hosts: int,
    gpus: int,
    tenant: str | None,
    restart: float,
    network: str | None,
    journal: Path | None,
) -> None:
    """Print the six steps of one job, from a virtual run or from the journal of any run."""
    decides = parse_policy(policy)
    links = star(hosts, bits_per_second(network)) if network is not None else None
    cluster = Cluster(Cluster.uniform(hosts, gpus).hosts, links)
    if journal is None:
        jobs = jobs_that_fit(trace, cluster.gpus, tenant)
        found = explain_run(jobs, cluster, decides, name, Costs(restart=restart))
    else:
        if not journal.is_file():
            raise ClusterError(f"there is no file {journal}; give the journal of a run, such as FOLDER/journal.jsonl")
        entries = read(journal)
        if entries and "hosts" in entries[0]:
            cluster = Cluster(tuple(Host(host, count) for host, count in entries[0]["hosts"]))
        found = explain_journal(entries, jobs_that_fit(trace, cluster.gpus, tenant), cluster, decides, name)
    print(told(found, as_workflow(decides), cluster))


def told(found: Explained, workflow: Workflow, cluster: Cluster) -> str:
    """Return what became of a job, in lines.

    - `found`: what its steps decided.
    - `workflow`: the steps.
    - `cluster`: the hosts.
    """
    job = found.job
    lines = [f"{job.name} of {job.tenant or 'nobody'} arrives at {job.arrival:g} s and asks for {job.gpus:g} GPUs"]
    for moment in found.moments:
        upon = ", ".join(f"{type(event).__name__} {' '.join(map(str, event))}".strip() for event in moment.events[:4])
        lines.append(f"{moment.now:12.1f} s  (upon {upon or 'a round'})")
        for number, (step, text) in enumerate(zip(STEPS, _steps(moment, workflow, cluster), strict=True), 1):
            lines.append(f"    {number} {step:9} {text}")
    if math.isnan(found.completed):
        lines.append("is not done when the journal ends")
    else:
        lines.append(f"{found.completed:12.1f} s  is done, which later profiles count")
    lines += [f"  {name:14} {part:12.1f} s" for name, part in zip(PARTS, found.parts, strict=True)]
    return "\n".join(lines)


def _steps(moment: Moment, workflow: Workflow, cluster: Cluster) -> tuple[str, ...]:
    return (
        f"{workflow.profile or 'none'}: {_profile(moment)}",
        f"{workflow.allocate or 'none'}: {moment.workers} GPUs of {cluster.gpus}",
        f"{workflow.order or 'none (fifo)'}: {_order(moment)}; {moment.runs} jobs run and {moment.waits} wait",
        f"{workflow.arrange or 'none'}: {_arranged(moment)}",
        f"{workflow.flows or 'none (max-min)'}: {_flows(moment)}",
        _run(moment, cluster),
    )


def _profile(moment: Moment) -> str:
    known = moment.profile
    if math.isinf(known.work.value):
        work = "nobody knows its work"
    else:
        left = max(known.work.value - moment.done, 0.0)
        work = f"{left:g} of {known.work.value:g} work left (source: {known.work.source})"
    if not known.speeds:
        return work
    pairs = [f"{speed:.3g} on {workers}" for workers, speed in enumerate(known.speeds) if speed]
    return f"{work}; work a second: {', '.join(pairs)} workers"


def _order(moment: Moment) -> str:
    if moment.grant is None:
        return "waits" if moment.held is None else "is preempted"
    if moment.held is None:
        return "starts"
    return "goes on" if moment.held.devices == moment.grant.devices else "moves"


def _arranged(moment: Moment) -> str:
    found = moment.arrangement
    if found is None:
        return "it sends nothing between hosts" if moment.grant is not None else "nothing runs"
    return (
        f"{len(found.plan.messages)} messages; an iteration takes {found.seconds:.3g} s alone, of computing "
        f"{found.computing:.3g} s and sending {found.sending:.3g} s"
    )


def _flows(moment: Moment) -> str:
    if moment.arrangement is None:
        return "no flows"
    return f"{moment.ahead} of {moment.senders} jobs' flows go first"


def _run(moment: Moment, cluster: Cluster) -> str:
    if moment.grant is None or moment.rate is None:
        return "holds nothing"
    places = ", ".join(f"{count} on {cluster.hosts[host].name}" for host, count in moment.grant.by_host)
    return f"{places}: {moment.rate.speed:.3g} of work a second, {100 * moment.rate.communicating:.0f} % in messages"
