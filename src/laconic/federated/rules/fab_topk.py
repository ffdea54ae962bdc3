"""Sparse gradients both ways, fair to all clients, with a number of entries that is learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from laconic.compression.codes import places as code
from laconic.compression.topk import largest
from laconic.federated.client_memory import Memory
from laconic.federated.fair_places import fair_places
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Work
from laconic.federated.online_sparsity import OnlineSparsity, slope_sign
from laconic.federated.population import Population
from laconic.federated.rule import Report, Rule, Sent, Server
from laconic.registry import knob, technique


@technique("fab_topk", paper="Han, Wang and Leung, ICDCS 2020")
@dataclass(frozen=True)
class FABTopK(Rule):
    """Clients add up their gradients and send the k largest entries; the server sends back k entries of the sum, of
    which each of N clients has at least ⌊k/N⌋ among its own, and clients forget what was sent of these.

    A round is one step, of one batch, and all clients hold the same model. k is learned: clients tell the loss of one
    sample before and after the last step, and after a step with fewer entries, which are the first of the same message;
    the server estimates whether the time for the same progress rises with k, and moves k by (k_max - k_min)/√(2m) at
    the m-th step. Every 20 steps the interval may shrink around the last numbers.

    Readings chosen: losses come with the report of the next round. What a round with fewer entries would take is its
    training, and its messages in the proportion of entries. A client that was left out of rounds is sent the whole
    model and the places of its last round. The rule packs its entries by itself: write no compression beside it.

    The first steps of k are long, and what they cost stays: digits among 5 clients took 1.14 to 1.30 times as long to a
    loss of 0.11 as with the best of six fixed numbers over links of 10 Mbit/s, and 1.49 times over 1 Mbit/s, where
    1.2 was wanted. Longer runs do not help: with a third of the rate, over 1,230 rounds to a loss of 0.09, it was 1.29
    and 1.45 times (one seed, three numbers). The estimate compares a single step, in which what stays in the memories
    counts for nothing although later steps send it; that would explain why k settles above the best.
    """

    personal: ClassVar[bool] = True

    ratio: float = knob(0.05, above=0, high=1, doc="share of the entries that are sent, at first")
    learned: bool = knob(True, doc="whether the number of entries is learned")
    least: float = knob(0.002, above=0, high=1, doc="the smallest share that is tried")
    most: float = knob(1.0, above=0, high=1, doc="the largest share that is tried")

    def init(self, start: Tensor, population: Population) -> Server:
        n = start.numel()
        fewest = min(2.0, n)  # of one entry alone, no fewer could be asked for
        first, low, high = (max(fewest, share * n) for share in (self.ratio, self.least, self.most))
        sparsity = OnlineSparsity(first, low, high)
        kept = {"sparsity": sparsity, "k": round(sparsity.k), "message": {}, "last": {}, "chosen": {}, "tried": None}
        return Server(start.clone(), kept=kept)

    def work(self, server: Server, client: int, population: Population, rate: float) -> Work:
        return Work(1, self.batch, rate, steps=1)

    def down_to(self, server: Server, client: int) -> Sent:
        kept, asked = server.kept, torch.tensor([server.kept["k"]], dtype=torch.int32)
        last = kept["last"].get(client)
        if last is not None and last == server.version - 1:
            return Sent({}, raw={"k": asked, **kept["message"]})
        chosen = {} if last is None else {"chosen": kept["chosen"][last]}
        return Sent({}, raw={"k": asked, "model": server.parameters, **chosen})

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        numbers: dict[str, float] = {}
        if "model" in received:
            parameters, chosen = received["model"], None
            if "chosen" in received:  # as many as it had sent
                chosen = _read(received["chosen"], len(memory["sent"]), parameters.numel())
        else:
            chosen = _read(received["places"], len(received["values"]), memory["parameters"].numel())
            fewer = int(received["fewer"])
            before = memory["parameters"]
            parameters = _stepped(before, chosen, received["values"])
            if fewer:
                other = _stepped(before, chosen[:fewer], received["values"][:fewer])
                one = local.draw.choice(local.samples, 1)
                each = {"before": before, "after": parameters, "probe_after": other}
                numbers = {name: local.trainer.gradient(at, one)[1] for name, at in each.items()}
        summed = memory.get("summed", torch.zeros_like(parameters))
        if chosen is not None:
            summed[memory["sent"][torch.isin(memory["sent"], chosen)]] = 0.0
        batch = next(local.work.batches(local.samples, local.draw))
        summed = summed + local.work.rate * local.trainer.gradient(parameters, batch)[0]
        places = largest(summed, int(received["k"]))
        memory.update(parameters=parameters, summed=summed, sent=places)
        return Sent({}, numbers, raw={"places": _written(places, summed.numel()), "values": summed[places]})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        kept, n, total = server.kept, server.parameters.numel(), sum(report.samples for report in reports)
        k, sparsity = kept["k"], self._learned(kept, reports)
        places = [_read(report.vectors["places"], k, n) for report in reports]
        values = [report.vectors["values"] for report in reports]
        mean = torch.zeros_like(server.parameters)
        for report, at, value in zip(reports, places, values, strict=True):
            mean.index_add_(0, at, value, alpha=report.samples / total)
        chosen, fewer = fair_places(places, values, mean, k), 0
        if self.learned and (fewer := max(1, round(kept["sparsity"].probe))) < k:
            first = fair_places(places, values, mean, fewer)
            chosen = torch.cat([first, chosen[~torch.isin(chosen, first)]])
        else:
            fewer = 0
        last = {**kept["last"], **{report.client: server.version for report in reports}}
        written = _written(chosen, n)
        return server.next(
            _stepped(server.parameters, chosen, mean[chosen]),
            sparsity=sparsity,
            k=_rounded(sparsity.k, server.version) if self.learned else k,
            message={"places": written, "values": mean[chosen], "fewer": torch.tensor([fewer], dtype=torch.int32)},
            last=last,
            chosen={v: at for v, at in {**kept["chosen"], server.version: written}.items() if v in last.values()},
            tried=(k, _seconds(reports, 1.0), fewer, _seconds(reports, fewer / k)),
        )

    def _learned(self, kept: Any, reports: Sequence[Report]) -> OnlineSparsity:
        """Return what is known of the number of entries once clients have told their losses of the last round."""
        told = [report for report in reports if "before" in report.numbers]
        sparsity: OnlineSparsity = kept["sparsity"]
        if not self.learned or not told:
            return sparsity
        losses = {
            name: sum(report.samples * report.numbers[name] for report in told)
            for name in ("before", "after", "probe_after")
        }
        return sparsity.moved(slope_sign(*kept["tried"], **losses))


def _seconds(reports: Sequence[Report], share: float) -> float:
    """Return how long the round takes with such a share of its messages."""
    return max(report.training + share * (report.seconds - report.training) for report in reports)


def _rounded(k: float, version: int) -> int:
    """Return a whole number of entries, right in the mean."""
    return int(k) + int(np.random.default_rng([0xFAB, version]).random() < k - int(k))


def _stepped(parameters: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Return the parameters after a step with some entries."""
    return parameters.index_add(0, places, values, alpha=-1.0)


def _written(places: Tensor, numel: int) -> Tensor:
    return code.write("packed", places, numel)


def _read(written: Tensor, count: int, numel: int) -> Tensor:
    return code.read("packed", written, count, numel)[0]
