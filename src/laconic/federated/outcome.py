"""What came of a federated run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from laconic.federated.partition import Integers
from laconic.federated.rule import Server


@dataclass(frozen=True)
class Step:
    """A step of the server, or a round that was lost.

    - `seconds`: when it ended.
    - `clients`: whose reports were taken.
    - `late`, `lost`: who reported too late, and who did not report.
    - `staleness`: by how many versions the model of each report was behind.
    - `up_bytes`, `down_bytes`: what all clients have sent and received so far, payloads alone.
    - `scores`: what the model was judged by, where it was.
    """

    seconds: float
    clients: tuple[int, ...]
    late: tuple[int, ...]
    lost: tuple[int, ...]
    staleness: tuple[int, ...]
    up_bytes: int
    down_bytes: int
    scores: Mapping[str, float]

    @property
    def committed(self) -> bool:
        """Whether the server's model was changed."""
        return bool(self.clients)


@dataclass(frozen=True, eq=False)
class FederatedOutcome:
    """A whole run.

    - `parameters`: the model that it ends with.
    - `server`: what the server knows at the end.
    - `steps`: what happened, in order.
    - `up_bytes`, `down_bytes`: what each client has sent and received, payloads alone.
    """

    parameters: Tensor
    server: Server
    steps: Sequence[Step]
    up_bytes: Integers
    down_bytes: Integers

    @property
    def seconds(self) -> float:
        """When the last step ended."""
        return self.steps[-1].seconds if self.steps else 0.0

    def first(self, score: str, target: float) -> Step | None:
        """Return the first step at which a score had reached a target: at least so high, or so low for a loss."""
        for step in self.steps:
            if score in step.scores and (
                step.scores[score] <= target if score == "loss" else step.scores[score] >= target
            ):
                return step
        return None
