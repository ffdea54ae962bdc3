"""The parameter-server architecture: servers hold the model, workers push to them and pull from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import optim

from laconic.architecture.base import Architecture
from laconic.architecture.compression_alone import downward_compressor
from laconic.architecture.server.client import ServerClient
from laconic.architecture.server.sharding import Range, even, hashed, whole
from laconic.claims import EveryRankEndsWithTheSum, WireFactor
from laconic.compression.base import Compressor
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Gather, GatherRagged, Meets, Reduce, Request

_HEADER_BYTES = 256
"""The most that a message to a server has beside its tensors: what it is, its round, its sender and its number."""
_PLACEMENTS = {"even": even, "whole": whole, "hashed": hashed}
_ELEMENTWISE = ("SGD", "ASGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop")


@technique(
    "parameter_server",
    aliases=["ps"],
    paper="Li, Andersen, Smola, Yu, NIPS 2014; Li et al., OSDI 2014",
    claims=[EveryRankEndsWithTheSum(), WireFactor(lambda size: 1.0)],
    worth_trying=["parameter_server"],
)
@dataclass(frozen=True)
class ParameterServer(Architecture):
    """Servers hold the model in shards; workers push what they have computed and pull what they need.

    For rules that average among all workers the servers add up, in rank order, and every worker collects the sum: a
    payload up and a payload down, however many workers there are. For asynchronous rules they hold the values and step
    the user's optimizer. Shards are cut evenly by bytes where the optimizer treats every element alone, and by whole
    tensors where it may look at a tensor as a whole; `hashed` puts blocks on a hash ring, so that one server more moves
    only its own share. With a replica every write goes to two servers and is acknowledged when both have it, so that
    either may be lost for good (the paper replicates between servers, after aggregation, with fewer bytes for workers).
    Ranges are agreed from the start, so that no message carries keys. The sentence's compression is for what is pushed,
    `down` for what is read: casts send the values, anything else sends how they have changed since this worker's last
    read, and the server remembers for each worker what it has not sent.
    """

    shards: int = knob(1, low=1, doc="servers among which the model is divided")
    placement: str = knob("auto", choices=("auto", "even", "whole", "hashed"), doc="how tensors are divided")
    replicas: int = knob(0, low=0, high=1, doc="further copies of each shard, on other servers")
    down: str = knob("none", doc='compression of what is read, as bf16, or of how it changes, as "topk(0.01)"')
    offers: ClassVar[tuple[str, ...]] = ("average", "server")
    collective: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.downward()

    carries: ClassVar[tuple[type, ...] | None] = (Reduce, Gather, GatherRagged)

    @property
    def servers(self) -> int:
        return self.shards

    def on_hosts(self, hosts: int) -> ParameterServer:
        return replace(self, shards=hosts)

    def downward(self) -> Compressor | None:
        """Return the compressor of what is read, or None where `down` is none."""
        return None if self.down == "none" else downward_compressor("ps", self.down)

    def carry(self, request: Request, transport: Any) -> Communication[Any]:
        server: ServerClient = transport
        if isinstance(request, Reduce):
            return self._reduce(request, server)
        assert isinstance(request, Gather | GatherRagged)
        return self._gather(request, server)

    def sent_bytes(self, payload_bytes: float, size: int, meets: Meets = "reduce") -> float:
        return payload_bytes

    def control_bytes(self, tensors: int, size: int, rounds: int = 1, ragged: bool = False, messages: int = 1) -> float:
        """Return the headers of a request for dense tensors and of one for each round, to every shard, and the
        lengths of the tensors in it. Flags are in the dense message, and count as payload."""
        return (1 + rounds) * messages * self.shards * _HEADER_BYTES + 16 * tensors * rounds

    def divide(self, specs: Sequence[TensorSpec], optimizer: optim.Optimizer) -> list[Range]:
        """Return which shard holds which ranges of these tensors."""
        placement = self.placement
        if placement == "auto":
            alone = type(optimizer).__module__.startswith("torch.optim") and type(optimizer).__name__ in _ELEMENTWISE
            placement = "even" if alone else "whole"
        return _PLACEMENTS[placement](specs, self.shards)

    def _reduce(self, request: Reduce, server: ServerClient) -> Communication[Any]:
        x = request.tensor
        op = "max" if request.op == "max" else "sum"
        if request.piece is None:
            parts = [(part.clone(),) for part in x.detach().reshape(-1).tensor_split(self.shards)]
            messages = yield from server.aggregate(parts, op, priority=request.priority)
        else:  # one of many pieces, which their numbers spread over the shards
            only = request.piece % self.shards
            messages = yield from server.aggregate([(x.detach().clone(),)], op, only, request.priority)
        result = torch.cat([message.tensors[0] for message in messages]).view(x.shape)
        members = min(message.number("members") for message in messages)
        if request.op == "mean":
            result.mul_(1 / members)
        elif request.op == "sum" and members < server.size:  # the mean of those who are left
            result.mul_(server.size / members)
        return x.copy_(result)

    def _gather(self, request: Gather | GatherRagged, server: ServerClient) -> Communication[Any]:
        """Gather payloads that cannot be summed through one shard, another one each round."""
        payload = request.tensor.detach().clone()
        parts = request.parts if isinstance(request, GatherRagged) else None
        pieces = (payload,) if parts is None else payload.split(list(parts))
        (message,) = yield from server.aggregate([tuple(pieces)], "gather", only=server.round % self.shards)
        if isinstance(request, Gather):
            return torch.stack(message.tensors)
        tensors = list(message.tensors)
        return tensors if parts is None else [tensors[i : i + len(parts)] for i in range(0, len(tensors), len(parts))]
