"""QSFL: clients must qualify to upload, and upload a segment of their model, one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.rule import Report, Rule, Sent, Server
from laconic.registry import knob, technique


@technique("qsfl", paper="Yi, Wang and Liu, ICML 2022")
@dataclass(frozen=True)
class QSFL(Rule):
    """Save uploads twice: of all clients of a round only those of the best scores upload, and of their models only a
    segment, a different one in every round.

    A client tells how large a share of its parameters has the sign of the server's, and its loss; with the share c_k of
    its mean loss in everybody's, its score is (1 - β) relevance + β c_k. In round t client k uploads segment (t + k)
    mod S of its model. The server takes the mean of what has come for each entry, and keeps what nobody has sent. The
    paper's second saving within a segment, its 40 % largest entries, is the word beside it: `qsfl / topk(0.4)`.

    Readings chosen: l_k/n_k of the paper is a client's mean loss; an entry that was not sent does not count in the mean
    (in the released program it counts as 0).
    """

    asks_first: ClassVar[bool] = True

    segments: int = knob(6, low=1, doc="S, into how many segments the model is cut")
    qualified: float = knob(0.7, above=0.0, high=1.0, doc="share of a round's clients that upload")
    beta: float = knob(0.9, low=0.0, high=1.0, doc="β, how much the loss counts in a client's score")

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        start = received["parameters"]
        done = local.descend(start)
        relevance = float((done.end.sign() == start.sign()).float().mean())
        segment = self._cut(done.end)[(local.version + local.client) % self.segments]
        return Sent({"segment": segment}, {"relevance": relevance, "loss": done.loss})

    def admitted(self, server: Server, offers: Sequence[Report]) -> Sequence[int]:
        total = sum(offer.numbers["loss"] for offer in offers)

        def score(offer: Report) -> float:
            share = offer.numbers["loss"] / total if total else 0.0
            return (1 - self.beta) * offer.numbers["relevance"] + self.beta * share

        best = sorted(offers, key=lambda offer: (-score(offer), offer.client))
        return [offer.client for offer in best[: math.ceil(round(self.qualified * len(offers), 9))]]

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        segments = self._cut(server.parameters)
        total, count = torch.zeros_like(segments), torch.zeros_like(segments)
        for report in reports:
            place, sent = (report.version + report.client) % self.segments, report.vectors["segment"]
            total[place] += sent
            count[place] += sent != 0
        mean = torch.where(count > 0, total / count.clamp(min=1), segments)
        return server.next(mean.view(-1)[: server.parameters.numel()].clone())

    def _cut(self, vector: Tensor) -> Tensor:
        """Return the segments of a vector, a row each; the last is filled with zeros."""
        each = -(-vector.numel() // self.segments)
        return torch.nn.functional.pad(vector, (0, self.segments * each - vector.numel())).view(self.segments, each)
