"""The Ray driver on several nodes of one machine: the virtual driver's policies run real gangs, and what dies is made
up for."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laconic.cluster.data_parallel import DataParallel
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.journal import read, replayed
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, replay
from laconic.cluster.state import Event, State
from laconic.cluster.workflow.explain import as_workflow, explain_journal, explain_run
from laconic.cluster.workflow.workflow import Workflow
from laconic.errors import ClusterError
from laconic.report.cluster_workflow import STEPS, told
from tests.integrations.ray_works import notes
from tests.integrations.scripts import ROOT, needs

pytestmark = [pytest.mark.long, needs("ray")]
HOSTS = Cluster((Host("a", 2), Host("b", 2)))
SPARE = Host("c", 1)
WORKS = Path(__file__).with_name("ray_works.py")
TICK, SAVE_EVERY, SECONDS = 0.25, 2.0, 600.0
VARIABLES = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "240",  # beside other tests on two cores
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A Ray cluster with a node for each host."""
    before = dict(os.environ)
    os.environ.update(VARIABLES)
    from laconic.cluster.ray.local import local_nodes

    quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5, "worker_niceness": 0}
    try:
        with local_nodes(HOSTS, quick) as made:
            yield made
    finally:
        os.environ.clear()
        os.environ.update(before)


def waits(name: str, arrival: float, gpus: int, seconds: float) -> tuple[Job, Any]:
    from laconic.cluster.ray.work import Task

    progress = Fixed(seconds)
    return Job(name, arrival, gpus, progress), Task(f"{WORKS}:NotedWaits", {"progress": progress, "tick": TICK})


class Started(threading.Thread):
    """A run that goes on while a test does something to it."""

    def __init__(self, jobs: list[tuple[Job, Any]], policy: Policy, folder: Path, hosts: Cluster = HOSTS) -> None:
        super().__init__(daemon=True)
        self.jobs, self.policy, self.folder, self.hosts = jobs, policy, folder, hosts
        self._outcome: Outcome | BaseException | None = None
        self.start()

    def run(self) -> None:
        from laconic.cluster.ray.run import run

        try:
            self._outcome = run(self.jobs, self.policy, self.folder, self.hosts, SAVE_EVERY)
        except BaseException as error:
            self._outcome = error

    def until(self, found: Callable[[], Any]) -> Any:
        """Return what is found as soon as it is."""
        end = time.monotonic() + SECONDS
        while not (what := found()):
            assert self.is_alive() and time.monotonic() < end, (self._outcome, self.entries[-3:])
            time.sleep(0.05)
        return what

    @property
    def entries(self) -> list[dict[str, Any]]:
        path = self.folder / "journal.jsonl"
        return read(path) if path.is_file() else []

    def steps(self, job: str) -> list[int]:
        """The numbers of the steps that rank 0 has taken."""
        return [line["steps"] for line in notes(self.folder, job) if line["what"] == "step" and line["rank"] == 0]

    def outcome(self) -> Outcome:
        self.join(SECONDS)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None, "the run did not end in time"
        return self._outcome


def seen_well(run: Started, outcome: Outcome) -> None:
    """What holds of every run: decisions replay, time adds up, gangs are whole, all work was done."""
    again = list(replayed(run.entries, outcome.jobs, run.hosts, run.policy))
    assert len(again) == outcome.decisions and all(one.is_equal for one in again)
    np.testing.assert_allclose(outcome.parts.sum(axis=0), outcome.completion_times, atol=0.05)
    for job in outcome.jobs:
        lines = notes(run.folder, job.name)
        steps = [line["steps"] for line in lines if line["what"] == "step" and line["rank"] == 0]
        assert set(steps) == set(range(1, max(steps) + 1))
        begun = 0
        for line in lines:
            if line["what"] == "begin":
                begun += 1
                assert line["size"] == job.workers
            else:  # all of its gang have begun, and none of the next
                assert begun and begun % job.workers == 0
        final = [line["done"] for line in lines if line["what"] == "step" and line["rank"] == 0]
        assert final[-1] == job.progress.work


@dataclass(frozen=True)
class Yields(Policy):
    """The first job runs until it has done some work, makes room for the second, and runs again after it."""

    work: float = 0.0

    @property
    def every(self) -> float:
        return 0.5

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        if 1 in state.active and state.done(0) >= self.work:
            return Decision({1: Grant((Slot(1, 0), Slot(1, 1)))}), None
        return Decision({0: Grant((Slot(0, 0), Slot(0, 1), Slot(1, 0)))} if 0 in state.active else {}), None


def test_preempted_jobs_lose_no_step(nodes: Any, tmp_path: Path) -> None:
    run = Started([waits("long", 0.0, 3, 20.0), waits("short", 0.0, 2, 3.0)], Yields(5.0), tmp_path)
    outcome = run.outcome()
    seen_well(run, outcome)
    assert outcome.restarts.tolist() == [1, 0]
    assert run.steps("long") == list(range(1, 81))  # 20 s of quarter seconds, each once
    (stopped,) = (entry for entry in run.entries if entry["kind"] == "ended" and entry["why"] == "stopped")
    first, second = (entry for entry in run.entries if entry["kind"] == "begun" and entry["job"] == 0)
    assert (stopped["job"], stopped["done"]) == (0, second["done"])
    assert first["done"] == 0 and stopped["done"] >= 5
    assert [line["host"] for line in notes(tmp_path, "short") if line["what"] == "begin"] == [1, 1]
    assert [line["host"] for line in notes(tmp_path, "long") if line["what"] == "begin" and line["rank"] == 2] == [1, 1]
    assert stopped["at"] < next(e["at"] for e in run.entries if e["kind"] == "begun" and e["job"] == 1)


def decided(outcome: Outcome) -> list[tuple[Any, ...]]:
    """Upon what something was changed, which jobs stopped and which started on how many GPUs."""
    made = [(one.events, one.changes) for one in outcome.log if one.changes]
    return [(events, sorted(one.stop), sorted((job, grant.gpus) for job, grant in one.start)) for events, one in made]


@pytest.mark.technique("cluster_workflow", check=1)
def test_the_six_steps_of_a_run_are_explained_as_those_of_a_virtual_one(nodes: Any, tmp_path: Path) -> None:
    """Jobs are of such lengths that what is left of them is in the same order whatever starts take, on both drivers."""
    jobs = [waits("a", 0.0, 2, 40.0), waits("b", 1.0, 4, 10.0), waits("c", 4.0, 1, 2.0)]
    run = Started(jobs, Workflow("table", "shares", "srtf"), tmp_path)
    outcome = run.outcome()
    seen_well(run, outcome)
    virtual = replay([job for job, _ in jobs], HOSTS, run.policy, Costs(start=2.0, restart=2.0), keep_log=True)
    assert decided(outcome) == decided(virtual)
    assert sum(bool(stopped) for _, stopped, _ in decided(outcome)) >= 2
    for job in outcome.jobs:
        real = explain_journal(run.entries, outcome.jobs, HOSTS, run.policy, job.name)
        made = explain_run([job for job, _ in jobs], HOSTS, run.policy, job.name, Costs(start=2.0, restart=2.0))
        texts = [told(found, as_workflow(run.policy), HOSTS).splitlines() for found in (real, made)]
        steps = [[line for line in text if line.startswith(("    2 ", "    3 ", "    4 ", "    5 "))] for text in texts]
        assert steps[0] == steps[1] and len(steps[0]) == 4 * len(real.moments)
        for number, name in enumerate(STEPS, 1):
            assert sum(line.startswith(f"    {number} {name}") for line in texts[0]) == len(real.moments)


def test_a_worker_that_is_killed_costs_at_most_a_checkpoint_interval(nodes: Any, tmp_path: Path) -> None:
    run = Started([waits("killed", 0.0, 2, 15.0), waits("other", 0.0, 1, 5.0)], Fifo(), tmp_path)
    run.until(lambda: len(run.steps("killed")) > 20)
    victim = next(line["pid"] for line in notes(tmp_path, "killed") if line["rank"] == 1)
    os.kill(victim, signal.SIGKILL)
    outcome = run.outcome()
    seen_well(run, outcome)
    assert outcome.restarts.tolist() == [1, 0]
    steps = run.steps("killed")
    repeated = len(steps) - len(set(steps))
    assert 0 <= repeated <= SAVE_EVERY / TICK + 2  # and the step during which it was saved, and the one cut off
    assert max(steps) == 60
    assert len(run.steps("other")) == 20


def test_a_controller_that_is_killed_goes_on_from_its_journal(nodes: Any, tmp_path: Path) -> None:
    run = Started([waits("first", 0.0, 4, 12.0), waits("second", 1.0, 2, 4.0)], Fifo(), tmp_path)
    run.until(lambda: len(run.steps("first")) > 20)
    os.kill(run.entries[0]["pid"], signal.SIGKILL)
    outcome = run.outcome()
    seen_well(run, outcome)
    assert sum(entry["kind"] == "restarted" for entry in run.entries) == 1
    steps = run.steps("first")
    assert len(steps) - len(set(steps)) <= SAVE_EVERY / TICK + 2 + 8  # it computes on until its owner is missed
    assert outcome.restarts.tolist() == [1, 0]


def test_jobs_of_a_node_that_is_killed_complete_elsewhere(nodes: Any, tmp_path: Path) -> None:
    from laconic.cluster.ray.local import add_node

    extra = add_node(nodes, SPARE)
    hosts = Cluster((*HOSTS.hosts, SPARE))
    jobs = [waits("wide", 0.0, 5, 8.0), waits("narrow", 1.0, 2, 4.0)]
    jobs[0] = (Job("wide", 0.0, 3, Fixed(8.0)), jobs[0][1])
    jobs.insert(0, waits("on_c", 0.0, 1, 15.0))  # the fullest host that holds it: the spare one
    run = Started(jobs, Fifo(), tmp_path, hosts)
    run.until(lambda: len(run.steps("on_c")) > 12)
    assert notes(tmp_path, "on_c")[0]["host"] == 2
    nodes.remove_node(extra, allow_graceful=False)
    outcome = run.outcome()
    seen_well(run, outcome)
    lost = [event for entry in run.entries if entry["kind"] == "decided" for event in entry["events"]]
    assert ["HostLost", 2, [0]] in lost
    assert outcome.restarts.tolist() == [1, 0, 0]
    steps = run.steps("on_c")
    assert len(steps) - len(set(steps)) <= SAVE_EVERY / TICK + 2
    assert [line["host"] for line in notes(tmp_path, "on_c") if line["what"] == "begin"][-1] != 2


@dataclass(frozen=True)
class Moves(Policy):
    """The only job holds some slots until it has taken so many steps, and others then; it may have to pause between."""

    first: tuple[Slot, ...] = ()
    then: tuple[Slot, ...] = ()
    steps: float = 0.0
    pauses: bool = False

    @property
    def every(self) -> float:
        return 0.5

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        slots = self.first if state.done(0) < self.steps else self.then
        if self.pauses and 0 in state.running and state.running[0].slots != slots:
            return Decision(), None
        return Decision({0: Grant(slots)}), None


def test_a_training_that_moves_ends_with_the_weights_of_one_that_did_not(nodes: Any, tmp_path: Path) -> None:
    from laconic.cluster.ray.work import Task

    first, then = (Slot(0, 0), Slot(0, 1)), (Slot(1, 0), Slot(1, 1))
    work, ends = 1500.0, []
    for name, steps in (("stays", math.inf), ("moves", 100.0)):
        task = Task(f"{WORKS}:NotedDigits", {"strategy": "local(4) / topk(0.1)+ef"})
        run = Started([(Job("digits", 0.0, 2, Fixed(work)), task)], Moves(first, then, steps, True), tmp_path / name)
        outcome = run.outcome()
        assert outcome.restarts[0] == (name == "moves")
        lines = notes(run.folder, "digits")
        assert [line["size"] for line in lines if line["what"] == "begin"] == [2] * (4 if name == "moves" else 2)
        last = [line for line in lines if line["what"] == "save" and line["rank"] == 0][-1]
        assert last["steps"] == work
        ends.append(last["weights"])
    assert ends[0] == ends[1]


def test_a_job_goes_on_with_other_workers_where_it_was(nodes: Any, tmp_path: Path) -> None:
    """Two workers, then three, of which two are where those were: the new gang prepares beside the old one."""
    from laconic.cluster.ray.work import Task

    progress = DataParallel(600.0, compute=0.2)  # iterations
    task = Task(f"{WORKS}:NotedWaits", {"progress": progress, "tick": TICK})
    first, then = (Slot(0, 0), Slot(0, 1)), (Slot(0, 0), Slot(0, 1), Slot(1, 1))
    run = Started([(Job("grows", 0.0, 2, progress, most=3), task)], Moves(first, then, 60), tmp_path)
    outcome = run.outcome()
    assert all(one.is_equal for one in replayed(run.entries, outcome.jobs, HOSTS, run.policy))
    lines = notes(tmp_path, "grows")
    assert [line["size"] for line in lines if line["what"] == "begin"] == [2, 2, 3, 3, 3]
    steps = run.steps("grows")
    assert steps == list(range(1, max(steps) + 1))
    done = [line["done"] for line in lines if line["what"] == "step" and line["rank"] == 0]
    made = np.diff([0.0, *done])
    np.testing.assert_allclose(sorted(set(made.round(6)))[-1], TICK / (0.2 / 3))
    (stopped,) = (entry for entry in run.entries if entry["kind"] == "ended" and entry["why"] == "stopped")
    _, second = (entry for entry in run.entries if entry["kind"] == "begun")
    assert stopped["done"] == second["done"] > 60
    assert second["waited"] - second["idle"] >= second["prepared"]  # the old gang ended after the new one was prepared
    assert done[-1] == progress.work


def test_a_job_that_always_fails_is_given_up_and_named(nodes: Any, tmp_path: Path) -> None:
    from laconic.cluster.ray.work import Task

    broken = Job("broken", 0.0, 1, Fixed(5.0)), Task(f"{WORKS}:Raises", {"progress": Fixed(5.0)})
    run = Started([broken, waits("fine", 0.0, 1, 3.0)], Fifo(), tmp_path)
    with pytest.raises(ClusterError, match=r"broken: .*this job has no data"):
        run.outcome()
    assert len(run.steps("fine")) == 12
    assert sum(entry["kind"] == "ended" and entry["job"] == 0 for entry in run.entries) == 4
