"""The real half of `bench/chaos.py`: `laconic run --servers 2`, and SIGKILL for processes of it.

As a script (what the workers and servers run) it trains a small regression with tagged pushes. Every worker writes down
each tag when it is acknowledged, and what the servers list when it has ended.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

WORKERS, SERVERS, STEPS = 3, 2, 150
STEP_SECONDS = 0.02
SENTENCES = ("tagged_asp / none / ps(shards=2)", "tagged_ssp(2) / none / ps(shards=2)")
TIMEOUT_SECONDS = 150


def real(runs: int, seed: int) -> int:
    """Make this many disturbed runs, beside three undisturbed ones of each sentence."""
    calm: dict[str, list[float]] = {}
    for sentence in SENTENCES:
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                calm.setdefault(sentence, []).append(_account(_run(sentence, Path(folder), []))["loss"])
            print(f"\rcalm run of {sentence}", end="", file=sys.stderr, flush=True)
    acknowledged = lost = twice = failed = outside = kills = 0
    for k in range(runs):
        dice = random.Random(seed + k)
        sentence = SENTENCES[k % len(SENTENCES)]
        plan = [(dice.uniform(0.5, 2.5), dice.choice(["worker", "server"])) for _ in range(dice.randint(1, 2))]
        if len({kind for _, kind in plan}) == 2:  # not both within one snapshot interval: see the fault model
            plan = [(plan[0][0], plan[0][1]), (plan[0][0] + 3.0, plan[0][1])]
        with tempfile.TemporaryDirectory() as folder:
            found = _account(_run(sentence, Path(folder), sorted(plan)))
        kills += len(plan)
        acknowledged += found["acknowledged"]
        lost, twice = lost + found["lost"], twice + found["twice"]
        bad = found["error"] is not None
        off = not bad and found["loss"] > statistics.mean(calm[sentence]) + 4 * statistics.stdev(calm[sentence]) + 0.01
        failed, outside = failed + bad, outside + off
        if bad or off or found["lost"] or found["twice"]:
            print(f"\nreal run {k}: {sentence} {plan}: {found} (calm {calm[sentence]})")
        print(f"\rreal {k + 1}/{runs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(
        f"real: {runs} runs, {kills} processes killed, {acknowledged} updates acknowledged, {lost} lost, {twice} "
        f"applied twice, {failed} failed or hung, {outside} with a loss above the undisturbed runs' interval"
    )
    return lost + twice + failed + outside


def _run(sentence: str, folder: Path, plan: list[tuple[float, str]]) -> tuple[Path, str | None]:
    """Start a run, kill the processes of the plan (at its seconds after the first step), and wait for its end."""
    command = [
        sys.executable, "-m", "laconic", "run", "--workers", str(WORKERS), "--servers", str(SERVERS),
        "--restarts", "3", "--heartbeat", "3", "--timeout", str(TIMEOUT_SECONDS), "--folder", str(folder / "run"),
        str(Path(__file__).resolve()), str(folder), sentence,
    ]  # fmt: skip
    with (folder / "launcher.log").open("w") as log:
        launcher = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while not list(folder.glob("acknowledged-*")) and launcher.poll() is None:
                time.sleep(0.05)
            begin = time.monotonic()
            for after, kind in plan:
                time.sleep(max(0.0, begin + after - time.monotonic()))
                victims = [pid for pid, role, rank in _members(launcher.pid) if role == kind and rank != 0]
                if victims:
                    os.kill(random.choice(victims), signal.SIGKILL)
            code = launcher.wait(TIMEOUT_SECONDS + 30)
        except subprocess.TimeoutExpired:
            launcher.kill()
            return folder, "the launcher itself hung"
    return folder, None if code == 0 else f"exit code {code}: {(folder / 'launcher.log').read_text()[-400:]}"


def _members(launcher: int) -> list[tuple[int, str, int]]:
    """Return the run's processes as (id, role, number), from the environment that the launcher gave them."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = dict(v.split("=", 1) for v in (entry / "environ").read_text().split("\0") if "=" in v)
            command = (entry / "cmdline").read_text()
            message = json.loads(environment.get("LACONIC_RUN", "{}"))
        except (OSError, ValueError):
            continue
        if str(Path(__file__).name) in command and "laconic\0run" not in command and _descends(entry, launcher):
            role = message.get("role", "worker")
            number = message.get("index", 0) if role == "server" else int(environment.get("RANK", "0"))
            found.append((int(entry.name), role, number if role == "worker" else 1 + number))
    return found


def _descends(entry: Path, ancestor: int) -> bool:
    try:
        pid = int(entry.name)
        while pid > 1:
            if pid == ancestor:
                return True
            pid = int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, ValueError):
        pass
    return False


def _account(ran: tuple[Path, str | None]) -> dict[str, Any]:
    folder, error = ran
    acknowledged = [tag for path in folder.glob("acknowledged-*") for tag in path.read_text().split()]
    dumps = sorted(folder.glob("listed-*.json"), key=lambda path: path.stat().st_mtime)
    result: dict[str, Any] = {"acknowledged": len(acknowledged), "lost": 0, "twice": 0, "loss": float("inf")}
    if not dumps:
        return {**result, "error": error or "no worker came to its end"}
    last = json.loads(dumps[-1].read_text())
    for listed in last["tags"]:
        counts = Counter(listed)
        result["lost"] += sum(tag not in counts for tag in acknowledged)
        result["twice"] += sum(n > 1 for n in counts.values())
    return {**result, "loss": last["loss"], "error": error}


def main(folder: Path, sentence: str) -> None:
    """Train in a process of the run; servers stay in `distribute`."""
    sys.path.insert(0, str(Path(__file__).parent))
    from chaos import Tagged, register
    from laconic.values.run_config import RunConfig

    register()
    rank, life = int(os.environ["RANK"]), RunConfig.current().life
    task = Tagged(sentence, rank, life, 10 * rank + life)
    with (folder / f"acknowledged-{rank}-{life}").open("w", buffering=1) as acknowledged:
        for _ in range(STEPS):
            begin = time.monotonic()
            task.step()
            time.sleep(max(0.0, begin + STEP_SECONDS - time.monotonic()))  # as if a step took so long
            acknowledged.writelines(f"{tag}\n" for tag in task.acknowledged())
        acknowledged.writelines(f"{tag}\n" for tag in task.rest())
    final = task.finish()
    answers = task.server.pull(wants="tags").wait().fields
    content = {"loss": final, "tags": [fields["tags"] for fields in answers]}
    (folder / f"listed-{rank}-{life}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
