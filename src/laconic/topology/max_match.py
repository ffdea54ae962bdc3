"""Max-match: which layers of which peers to pull, the best first, until no budget has room for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Pull:
    """One layer that a worker gets from a peer, and the score for which it was chosen."""

    receiver: int
    peer: int
    layer: int
    score: float


def max_match(
    scores: NDArray[np.float64], layer_bytes: Sequence[int], receives: Sequence[float], sends: Sequence[float]
) -> list[Pull]:
    """Return the pulls that a greedy choice takes: in descending order of their scores, each that fits into what is
    left of its receiver's and of its sender's budget. Among equal scores the one of the lowest numbers comes first.

    - `scores`: by receiver, peer and layer; −∞ where nothing can be pulled.
    - `layer_bytes`: what a layer takes.
    - `receives`, `sends`: how many bytes each worker may receive and send.
    """
    receiving, sending = list(map(float, receives)), list(map(float, sends))
    pulls = []
    for place in np.argsort(-scores, axis=None, kind="stable").tolist():
        receiver, peer, layer = (int(k) for k in np.unravel_index(place, scores.shape))
        score, nbytes = float(scores[receiver, peer, layer]), layer_bytes[layer]
        if score == -np.inf:
            break
        if nbytes <= min(receiving[receiver], sending[peer]):
            receiving[receiver] -= nbytes
            sending[peer] -= nbytes
            pulls.append(Pull(receiver, peer, layer, score))
    return pulls
