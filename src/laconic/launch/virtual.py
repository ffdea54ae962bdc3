"""`laconic run --engine virtual`: the same command line, run on virtual workers in one process."""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from laconic.errors import LaconicError
from laconic.launch.failure_report import print_line, shown
from laconic.launch.request import Request
from laconic.launch.run_folder import RunRecord, choose_folder, forget_figures
from laconic.launch.summary import as_fields, missed_targets, summarise
from laconic.runtime.traffic import traffic_of
from laconic.virtual.script import run_script
from laconic.virtual.setup import DEFAULT_NETWORK, VirtualSetup


def launch_virtually(request: Request) -> int:
    """Run to the end, and return the exit code for the shell."""
    setup = VirtualSetup.read(request.network, request.workers + request.servers, request.profile)
    if request.slowness or request.stragglers:
        speeds = request.speeds()
        compute = replace(setup.compute, slowness=speeds.slowness, straggling=speeds.straggling)
        setup = replace(setup, compute=compute)
    if request.alone:
        setup = replace(setup, network=setup.network.free())
    folder = choose_folder(request.folder, request.stem)
    os.environ.update(request.config(folder).to_env())
    record = RunRecord(
        folder,
        command=sys.argv,
        engine="virtual",
        strategy=request.strategy,
        workers=request.workers,
        nodes=1,
        network=request.network or request.profile or DEFAULT_NETWORK,
        servers=request.servers,
        slowness=list(request.slowness),
        stragglers=list(request.stragglers),
        targets=dict(request.targets),
    )
    forget_figures(folder, range(request.workers), request.workers)
    record.begin(0)
    begin = time.perf_counter()
    try:
        out = run_script(
            Path(request.command[0]),
            request.command[1:],
            request.workers,
            setup,
            folder / "logs",
            threads=request.threads,
            timeline=request.trace,
            restarts=request.restarts,
            heartbeat_seconds=request.heartbeat_seconds,
            servers=request.servers,
        )
    except KeyboardInterrupt:
        record.end("interrupted", 130)
        return 130
    except LaconicError:
        record.end("failed", 2)
        raise
    except Exception:
        traceback.print_exc()
        record.end("failed", 1)
        return 1
    if out.timeline is not None:
        out.timeline.write(folder / "trace.json")
    traffic = [traffic_of(worker) for worker in out.workers]
    took = time.perf_counter() - begin
    record.end("succeeded", 0, virtual_seconds=out.seconds, seconds=took, **as_fields(traffic))
    print_line(
        f"{request.workers} virtual workers, {out.seconds:.6g} s of virtual time in {took:.1f} s: "
        f"{summarise(traffic)}; {shown(folder)}"
    )
    for sentence in missed_targets(folder, request.targets):
        print_line(sentence)
    return 0
