"""Processes that die and are restarted one by one: which are restarted, which are not, and what is reported."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import laconic
from laconic.errors import ContractError
from laconic.launch.request import Request
from laconic.launch.supervisor import Supervisor, build_supervisor
from laconic.real.connect import _join
from laconic.runtime.session import _next_session_number
from laconic.values.run_config import RunConfig
from tests.real.launching import processes_with

SCRIPT = Path(__file__).parents[1] / "real" / "scripts" / "member.py"
Run = Callable[..., tuple[Supervisor, int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run to the end in this process; gives the supervisor, the exit code and what was printed."""
    monkeypatch.setattr("laconic.launch.supervisor._SERVER_EXIT_SECONDS", 0.1)  # these servers never end by themselves

    def carry_out(plan: dict[str, list[str]], **asked: object) -> tuple[Supervisor, int, str]:
        message: list[str] = []
        (tmp_path / "logs").mkdir()
        request = Request(command=(str(SCRIPT), json.dumps(plan)), **{"workers": 2, "servers": 1, **asked})  # type: ignore[arg-type]
        supervisor = build_supervisor(request, tmp_path, message.append, lambda *_: None)
        supervisor.run_to_end()
        code = supervisor.report()
        assert not processes_with(str(tmp_path))
        return supervisor, code, "\n".join(message)

    return carry_out


def lives(folder: Path, log: str) -> list[dict[str, object]]:
    """What each life of a process printed about itself."""
    lines = (folder / "logs" / log).read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_everybody_knows_who_it_is_and_the_keys_are_nobody_elses(run: Run, tmp_path: Path) -> None:
    _, code, message = run({}, servers=2)
    assert code == 0 and message == ""
    workers = [lives(tmp_path, f"rank-{k}.log")[0] for k in range(2)]
    servers = [lives(tmp_path, f"server-{k}.log")[0] for k in range(2)]
    assert [member["name"] for member in (*workers, *servers)] == ["rank 0", "rank 1", "server 0", "server 1"]
    assert [member["RANK"] for member in (*workers, *servers)] == ["0", "1", "2", "3"]
    assert {member["WORLD_SIZE"] for member in (*workers, *servers)} == {"2"}
    assert len({(member["MASTER_ADDR"], member["MASTER_PORT"]) for member in (*workers, *servers)}) == 1
    (keys,) = {str(member["keys"]) for member in (*workers, *servers)}
    assert stat.S_IMODE(Path(keys).stat().st_mode) == 0o600


def test_a_killed_worker_comes_back_and_takes_what_it_had_started_along(run: Run, tmp_path: Path) -> None:
    back = "wait rank-1.log finished"
    supervisor, code, message = run({"rank 0": [back], "rank 1": ["child; kill"]}, restarts=1)
    assert code == 0
    assert [life["life"] for life in lives(tmp_path, "rank-1.log")] == [0, 1]
    assert re.search(r"rank 1 on \S+ was lost: it was killed by SIGKILL\. It starts again: restart 1 of 1\.", message)
    assert supervisor.result_fields()["lost"] == [] and supervisor.result_fields()["restarts"] == {"rank 1": 1}
    child = re.search(r"child (\d+)", (tmp_path / "logs" / "rank-1.log").read_text())
    assert child is not None and not _lives(int(child[1]))


def test_without_restarts_the_run_goes_on_and_says_who_is_missing(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor, code, message = run({"rank 1": ["exit 3"]})
    assert code == 0 and "finished" in (tmp_path / "logs" / "rank-0.log").read_text()
    assert "rank 1" in message and "The run goes on without it." in message
    assert re.search(r"rank 1 was lost after \d+\.\d s for good: it ended with exit code 3", message)
    assert supervisor.result_fields()["lost"] == ["rank 1"]
    (loss,) = supervisor.result_fields()["losses"]
    assert (loss["who"], loss["life"], loss["restarted"]) == ("rank 1", 0, False)
    assert "rank-1.log" in capfd.readouterr().err


def test_a_killed_server_comes_back_while_the_workers_go_on(run: Run, tmp_path: Path) -> None:
    back = 'wait server-0.log "life": 1'
    _, code, message = run({"server 0": ["kill"], "rank 0": [back], "rank 1": [back]})
    assert code == 0 and "It starts again from its snapshot: restart 1 of 10." in message
    first, second = lives(tmp_path, "server-0.log")
    assert {**first, "life": 1} == second
    assert len(lives(tmp_path, "rank-0.log")) == 1


def test_a_server_that_keeps_dying_ends_the_run(run: Run) -> None:
    supervisor, code, message = run({"server 0": ["kill", "kill"], "rank 0": ["stay"]}, server_restarts=1)
    assert code == 128 + 9
    assert "the run failed: server 0 on" in message and "--server-restarts" in message
    assert supervisor.result_fields()["lost"] == ["server 0"]


@pytest.mark.parametrize("who", ["server 0", "rank 1"])
def test_a_frozen_process_is_named_killed_and_started_again(run: Run, tmp_path: Path, who: str) -> None:
    """Before, nothing happened until --timeout, which has no default."""
    log = f"{who.replace(' ', '-')}.log"
    back = f'wait {log} "life": 1'
    _, code, message = run({"rank 0": [back], who: ["beat; freeze"]}, restarts=1, heartbeat_seconds=1.0)
    assert code == 0 and [life["life"] for life in lives(tmp_path, log)] == [0, 1]
    assert re.search(rf"{who} on \S+ was lost: no heartbeat came for \d\.\d s\. It starts again", message)


def test_a_frozen_server_that_may_not_return_ends_the_run(run: Run) -> None:
    plan = {"rank 0": ["stay"], "rank 1": ["stay"], "server 0": ["beat; freeze"]}
    _, code, message = run(plan, server_restarts=0, heartbeat_seconds=1.0)
    assert code == 128 + 9 and re.search(r"the run failed: server 0 on \S+ was lost: no heartbeat came", message)


def test_a_refusal_ends_the_run_at_once(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """Before, a server that refused the script's strategy was started eleven times."""
    supervisor, code, message = run({"rank 0": ["stay"], "rank 1": ["stay"], "server 0": ["exit 78"]})
    assert code == 78 and supervisor.result_fields()["restarts"] == {}
    assert "the run failed: laconic refused to go on (server 0)." in message


def test_a_run_that_has_lost_rank_0_has_failed(run: Run, tmp_path: Path) -> None:
    _, code, message = run({"rank 0": ["exit 3"]})
    assert code == 3 and "finished" in (tmp_path / "logs" / "rank-1.log").read_text()
    assert "the run failed: rank 0 was lost for good" in message


def test_a_run_without_any_worker_left_has_failed(run: Run) -> None:
    _, code, message = run({"rank 0": ["exit 3"], "rank 1": ["exit 3"]})
    assert code == 3 and "no worker of this machine came to its end" in message


def test_a_server_that_has_said_goodbye_is_there_for_a_worker_that_comes_back(run: Run, tmp_path: Path) -> None:
    gone, again = "wait server-0.log finished; kill", 'wait server-0.log "life": 1'
    _, code, _ = run({"server 0": ["end"], "rank 1": [gone, again]}, restarts=1)
    assert code == 0 and len(lives(tmp_path, "server-0.log")) == 2


def test_a_worker_among_servers_is_joined_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**RunConfig(servers=1).to_env(), "RANK": "2", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    worker = _join()
    assert (worker.rank, worker.size, worker.world.ranks, worker.heartbeat) == (2, 4, (0, 1, 2, 3), None)
    assert worker.group([1, 2]).rank == 1
    for group in (worker.world, worker.group([1, 2])):
        with pytest.raises(ContractError, match="leave --servers out"):
            group.barrier()
    assert worker.ledger.sent_bytes() == 0


def test_servers_serve_one_model_and_a_second_distribute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the workers waited for a server of the second model, which nobody starts."""
    for name, value in {**RunConfig(servers=1).to_env(), "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    worker = _join()
    monkeypatch.setattr("laconic.api.distribute.connect", lambda: worker)
    _next_session_number(worker, worker.world.ranks)  # the first model's
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ContractError, match=r"one model, and this script calls distribute\(\) again"):
        laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "asp / none / ps")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
