"""A process of a run with servers that ends in each of its lives as its instructions say: `{"rank 1": ["kill", "end"],
…}`.

Without an instruction it acts by its role: a worker ends, a server stays. It never imports torch, and is silent until
it is told to `beat`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEADLINE_SECONDS = 60

message = json.loads(os.environ["LACONIC_RUN"])
is_server = message["role"] == "server"
name = f"server {message['index']}" if is_server else f"rank {os.environ['RANK']}"
plan = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
steps = [*plan.get(name, []), *[None] * 20][message["life"]] or ("stay" if is_server else "end")
job = {key: os.environ[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
print(f"pid {os.getpid()}")
print(json.dumps({"name": name, "life": message["life"], "keys": message["keys_file"], **job}), flush=True)


def wait_for(log: str, text: str) -> None:
    """Until this text is in that log of the run."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    path = Path(message["folder"]) / "logs" / log
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"{text!r} never came to {path}"
        time.sleep(0.01)


for step in steps.split("; "):
    what, *about = step.split(" ", 2)
    if what == "wait":
        wait_for(*about)
    elif what == "beat":
        from laconic.liveness import pipe_heartbeat

        pipe_heartbeat.start(message["heartbeat_pipe"], message["heartbeat_seconds"])
    elif what == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "child":
        print(f"child {subprocess.Popen(['sleep', '1000']).pid}", flush=True)
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        sys.exit(int(about[0]))
    elif what == "stay":
        while True:
            signal.pause()
print("finished", flush=True)
