"""FedDD: all clients take part, and each leaves out so many parameters as its link asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from laconic.errors import LaconicError, StrategyError
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.messages import NUMBER_BYTES
from laconic.federated.pace import Pace
from laconic.federated.population import Floats, Population
from laconic.federated.rule import Report, Rule, Sent, Server
from laconic.federated.setting import Setting
from laconic.registry import knob, technique


def dropout_rates(fixed: Floats, transfer: Floats, value: Floats, kept: float, delta: float, most: float) -> Floats:
    """Return the share of its parameters that each client leaves out: the solution of a linear programme, which
    minimises the time of the round, as a share of what it takes with whole models, plus δ times the mean of D value.

    - `fixed`, `transfer`: how long each client trains, and how long it sends and receives the whole model.
    - `value`: how much a client's parameters are worth.
    - `kept`: the share of all clients' parameters that is sent in all.
    - `most`: the largest share that a client leaves out.
    """
    clients = len(fixed)
    if 1 - kept > most + 1e-12:
        raise LaconicError(f"clients that leave out at most {most:g} of a model cannot send only {kept:g} of all")
    whole = float((fixed + transfer).max())
    found = linprog(
        np.append(delta * value / clients, 1.0),
        A_ub=np.hstack([-np.diag(transfer / whole), -np.ones((clients, 1))]),  # a client's time is at most the round's
        b_ub=-(fixed + transfer) / whole,
        A_eq=np.append(np.ones(clients), 0.0)[None],
        b_eq=[(1 - kept) * clients],
        bounds=[(0.0, most)] * clients + [(0.0, None)],
        method="highs",
    )
    return np.asarray(np.clip(found.x[:-1], 0.0, most))


@technique("feddd", paper="Feng et al., IEEE TMC 2023")
@dataclass(frozen=True)
class FedDD(Rule):
    """Differential parameter dropout: every client sends the parameters that matter most, slow ones fewer of them, and
    a bit for each that says which.

    The server averages each parameter over those who sent it, weighted by samples, and keeps it where nobody did. It
    sends a client the parameters of that client's own last mask, and every few rounds the whole model; elsewhere the
    client goes on from its own values. How much each leaves out is found anew in every round, by a linear programme
    over the time of the round and the value of what is left out, with the same traffic in all.

    Readings chosen: a parameter matters by its change relative to its size, |Δ|/(|w| + mean |w|). A client's value is
    its share of the samples times its loss, without the number of its classes, which the server is not told. All
    clients have the whole model.
    """

    kept: float = knob(0.5, above=0.0, high=1.0, doc="A, the share of all clients' parameters that is sent in a round")
    most: float = knob(0.8, low=0.0, below=1.0, doc="the largest share that a client leaves out")
    delta: float = knob(0.1, low=0.0, doc="δ, how much the value of what is left out weighs against time")
    every: int = knob(5, low=1, doc="rounds between those in which clients are sent the whole model")

    def begin(self, start: Tensor, population: Population, setting: Setting) -> Server:
        if self.clients != len(population):
            raise StrategyError(
                f"all clients take part in every round of feddd: write feddd(clients={len(population)})"
            )
        pace = Pace.of(population)
        training = self.epochs * pace.epoch(self.batch or np.maximum(pace.held, 1))
        fixed = training + pace.transfer(-(-start.numel() // 8) + NUMBER_BYTES, 4)
        times = fixed, pace.transfer(setting.nbytes(setting.up), start.nbytes)
        return Server(
            start.clone(),
            kept={
                "times": times,
                "samples": pace.held,
                "losses": np.ones(len(population)),
                "masks": {},
                "dropped": self._dropped(pace.held, times),
            },
        )

    def share(self, server: Server, client: int, published: Vectors) -> Vectors:
        """Return how much the client leaves out, and the parameters that it sent last: all of them where it has sent
        none, and every few rounds."""
        told = torch.tensor([server.kept["dropped"][client]], dtype=torch.float32)
        mask = server.kept["masks"].get(client)
        if mask is None or server.version % self.every == 0:
            return {**published, "dropped": told}
        return {"parameters": published["parameters"][mask], "dropped": told}

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        start, numel = received["parameters"], local.trainer.layout.numel
        if start.numel() < numel:
            start = memory["own"].masked_scatter(memory["mask"], start)
        done = local.descend(start)
        count = max(1, round((1 - float(received["dropped"])) * numel))
        loss = {"loss": done.loss}
        if count == numel:
            memory.clear()
            return Sent({"values": done.end}, loss)
        matter = (done.end - start).abs() / (start.abs() + start.abs().mean())
        mask = torch.zeros_like(start, dtype=torch.bool)
        mask[matter.topk(count).indices] = True
        memory["own"], memory["mask"] = done.end, mask
        return Sent({"values": done.end[mask]}, loss, {"sent": mask})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        total, weight = torch.zeros_like(server.parameters), torch.zeros_like(server.parameters)
        masks, losses = dict(server.kept["masks"]), server.kept["losses"].copy()
        for report in reports:
            losses[report.client] = report.numbers["loss"]
            mask = report.masks.get("sent")
            if mask is None:
                masks.pop(report.client, None)
                total.add_(report.vectors["values"], alpha=report.samples)
                weight += report.samples
            else:
                masks[report.client] = mask
                total[mask] += report.samples * report.vectors["values"]
                weight[mask] += report.samples
        mean = torch.where(weight > 0, total / weight.clamp(min=1), server.parameters)
        dropped = self._dropped(server.kept["samples"] * losses, server.kept["times"])
        return server.next(mean, masks=masks, losses=losses, dropped=dropped)

    def _dropped(self, worth: Floats, times: tuple[Floats, Floats]) -> Floats:
        return dropout_rates(*times, worth / worth.mean(), self.kept, self.delta, self.most)
