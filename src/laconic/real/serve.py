"""A server process: what `distribute` does in a process that the launcher started to serve rather than to train."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer

from laconic.liveness import pipe_heartbeat
from laconic.rpc.endpoint import Endpoint
from laconic.runtime.parameters import Parameters
from laconic.runtime.server_setup import Shards, address_of, served_sentences
from laconic.runtime.tiers import Tier
from laconic.strategy import Strategy
from laconic.values.run_config import RunConfig


def serve(
    model: nn.Module, optimizer: Optimizer, strategy: Strategy, description: dict[str, Any], config: RunConfig
) -> NoReturn:
    """Serve this server's shards until all workers are done, then end the process: called by `distribute`."""
    if config.heartbeat_pipe is not None:
        pipe_heartbeat.start(config.heartbeat_pipe, config.heartbeat_seconds)
    parameters = Parameters.of(model, gather_sparse=False)
    members = list(range(len(parameters.dense)))
    workers = range(config.workers or 1)
    endpoint = Endpoint.of_server(config)
    for sentence in served_sentences(strategy):
        tier = Tier(sentence, None)  # type: ignore[arg-type]  # a server belongs to no group
        name = address_of(0, workers, sentence, members)
        shards = Shards(tier, name, parameters.specs, parameters.dense, optimizer, workers, description)
        for home, g, k, c in shards.places:
            if home % config.servers == config.index:
                endpoint.host(shards.address(g, k, c), shards.build(g, k))
    _say(f"server {config.index} serves from here, at laconic.distribute(): the rest of the script is the workers'")
    endpoint.serve_until_done(len(workers))
    _say(f"server {config.index} ends, since all workers are done or lost")
    sys.exit(0)


def _say(what: str) -> None:
    sys.stderr.write(f"laconic: {what}\n")  # in one piece: the launcher may end this process at any time
    sys.stderr.flush()
