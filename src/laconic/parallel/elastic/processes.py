"""Layer holders in processes of their own, which may be killed: served and reached over `laconic.rpc`."""

from __future__ import annotations

import time
from collections.abc import Callable

from laconic.errors import ContractError, WorkerLost
from laconic.parallel.elastic.layer_holder import LayerHolder
from laconic.parallel.elastic.sending import Send
from laconic.rpc.endpoint import Endpoint
from laconic.worker import ActorMessage

_LOOK_SECONDS = 0.002


def address_of(node: int) -> str:
    """Return the address at which a node is found; a process that is started again has another number."""
    return f"elastic/{node}"


def serve_layers(endpoint: Endpoint, node: int, holder: LayerHolder) -> None:
    """Serve layers from threads of this process, until it ends or is killed; nothing of them is kept on disk.

    - `endpoint`: of this process, made without a folder for snapshots.
    - `node`: a number that no process had before.
    """
    endpoint.host(address_of(node), holder)


def sender(endpoint: Endpoint, has_ended: Callable[[int], bool]) -> Send:
    """Return how a trainer sends to nodes. `WorkerLost` is raised when a node's process has ended before its answer
    came, and when it has been silent for the endpoint's `unreachable_seconds`.

    - `endpoint`: the trainer's.
    - `has_ended`: tells of a node whether its launcher has seen its process end, which is sooner known than silence. It
      is asked once a message is on its way, and until the answer is there.
    """

    def send(node: int, message: ActorMessage, writes: bool) -> ActorMessage:
        call = endpoint.call(address_of(node), message, writes)
        while not call.done():
            if has_ended(node):
                raise WorkerLost(f"the process of node {node} has ended")
            time.sleep(_LOOK_SECONDS)
        answer = call.wait()
        if answer.kind == "refused":
            raise ContractError(f"node {node} refused {message.kind!r}: {answer.fields['why']}")
        return answer

    return send
