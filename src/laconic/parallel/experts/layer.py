"""A layer of experts, whole on one device or cut among several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laconic.errors import LaconicError
from laconic.parallel.experts.exchange import Exchange
from laconic.parallel.experts.routing import choose, kept_counts, places_by_expert
from laconic.worker import Group


@dataclass(frozen=True)
class Routed:
    """How the tokens of a forward pass were routed.

    - `balance_loss`: what grows as tokens crowd to few experts: the number of experts times the sum of each expert's
      share of first choices times its mean probability (Switch, equation 4; 1 where tokens spread evenly). Shares are
      those of all devices; the mean of the devices' losses is that of one process with all tokens.
    - `load`: how many tokens of these devices asked for each expert, all choices counted.
    - `dropped`: how many choices of these devices found no room in their expert.
    """

    balance_loss: Tensor
    load: Tensor
    dropped: int


class MixtureOfExperts(nn.Module):
    """Experts of which each token passes the few that a router chooses, with outputs weighted by its probabilities.

    In the place of a transformer's feed-forward network it adds nothing for a token that finds no room: the sum around
    it passes the token on. How tokens were routed is in `routed` after each forward pass. Every expert is called in
    every pass, with no rows where nobody chose it, so that its parameters always have gradients.

    Readings chosen: all choices of a token are sent, where GShard draws whether a second one is, and room is given out
    over the tokens of all devices, where GShard divides it among groups of them.

    - `router`: a module from tokens to a score for each expert; one that adds noise while it trains is noisy gating.
    - `experts`: modules from rows of tokens to rows, all of the same output width.
    - `top`: how many experts process a token.
    - `capacity_factor`: an expert has room for so many times its even share of choices, and the rest are dropped; None:
      for all.
    """

    def __init__(
        self, router: nn.Module, experts: Sequence[nn.Module], top: int = 2, capacity_factor: float | None = None
    ) -> None:
        super().__init__()
        if not 1 <= top <= len(experts):
            raise LaconicError(f"a token passes at least one of {len(experts)} experts and not more, not {top}")
        if capacity_factor is not None and not capacity_factor > 0:
            raise LaconicError(
                f"experts have room for something: the capacity factor is above 0, not {capacity_factor}"
            )
        self.router, self.top, self.capacity_factor = router, top, capacity_factor
        self.experts = nn.ModuleDict({str(number): expert for number, expert in enumerate(experts)})
        self.count = len(experts)
        self.routed: Routed | None = None
        self._exchange: Exchange | None = None
        self.copies: tuple[Group, ...] = ()
        """Groups of devices that hold the same experts as this one, and have other tokens."""
        self._name, self._step = "", 0

    @property
    def is_cut(self) -> bool:
        """Whether this device holds some of the experts, and exchanges tokens with others."""
        return self._exchange is not None

    def cut(self, exchange: Exchange, copies: Iterable[Group], name: str) -> None:
        """Keep the experts of this device alone, and exchange tokens with the other devices from now on.

        - `copies`: groups of devices that keep the same experts and have other tokens.
        - `name`: this layer's, the same on all devices.
        """
        size = exchange.group.size
        if self.is_cut:
            raise LaconicError(f"the experts of {name or 'this layer'} are cut already")
        if self.count % size:
            raise LaconicError(f"{name or 'the layer'} has {self.count} experts, which {size} devices do not divide")
        each, first = self.count // size, exchange.group.rank * (self.count // size)
        self.experts = nn.ModuleDict({str(k): self.experts[str(k)] for k in range(first, first + each)})
        self._exchange, self.copies, self._name = exchange, tuple(copies), name

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        choices = choose(self.router(tokens), self.top)
        if choices.probabilities.shape[-1] != self.count:
            raise LaconicError(
                f"the router gives {choices.probabilities.shape[-1]} scores, and there are {self.count} experts"
            )
        counts = choices.counts
        exchange = self._exchange
        rank, gathered = (0, counts[None]) if exchange is None else (exchange.group.rank, _gather(exchange, counts))
        kept = kept_counts(gathered, self.capacity_factor)
        places = places_by_expert(choices.experts, counts, kept[rank])
        numbers = places % max(len(tokens), 1)
        processed = self._processed(tokens[numbers], kept.sum(1), rank)
        weighted = processed * choices.gates.flatten()[places, None].to(processed.dtype)
        self.routed = self._noted(choices.probabilities, gathered, kept)
        mixed = weighted.new_zeros(len(tokens), weighted.shape[-1]).index_add(0, numbers, weighted)
        return mixed.view(*x.shape[:-1], mixed.shape[-1])

    def _processed(self, rows: Tensor, kept: Tensor, rank: int) -> Tensor:
        """Return the outputs of the experts that these rows, sorted by expert, are for.

        - `kept`: how many rows of each device are for each expert.
        """
        exchange = self._exchange
        if exchange is None:
            return self._outputs(rows, kept)
        size, each = len(kept), len(self.experts)
        own = kept[:, rank * each : (rank + 1) * each]
        sends, receives = kept[rank].view(size, each).sum(1).tolist(), own.sum(1).tolist()
        self._step += 1
        arrived = exchange(rows, sends, receives, f"{self._name}/dispatch", self._step)
        outputs = self._outputs(arrived, own)
        return exchange(outputs, receives, sends, f"{self._name}/combine", self._step)

    def _outputs(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs for rows that are sorted by device and expert, of which there are so many."""
        devices, each = counts.shape
        labels = torch.arange(each, device=rows.device).repeat(devices).repeat_interleave(counts.flatten())
        by_expert = labels.argsort(stable=True)
        parts = rows[by_expert].split(counts.sum(0).tolist())
        outputs = [expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)]
        return torch.cat(outputs)[by_expert.argsort()]

    def _noted(self, probabilities: Tensor, gathered: Tensor, kept: Tensor) -> Routed:
        first = gathered.sum(0)[0]
        devices = len(gathered)
        for group in self.copies:
            first = group.all_reduce(first.clone(), control=1.0).wait()
            devices *= group.size
        shares = first.to(probabilities.dtype) / first.sum().clamp(min=1)
        means = probabilities.sum(0) * (devices / first.sum().clamp(min=1))
        return Routed(self.count * (shares * means).sum(), gathered.sum((0, 1)), int((gathered - kept).sum()))


def _gather(exchange: Exchange, counts: Tensor) -> Tensor:
    gathered: Tensor = exchange.group.all_gather(counts, control=1.0).wait()
    return gathered


def layers_of_experts(model: nn.Module) -> dict[str, MixtureOfExperts]:
    """Return the layers of experts of a model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MixtureOfExperts)}


def balance_loss(model: nn.Module) -> Tensor:
    """Return the sum of the balance losses of a model's layers in the last forward pass: add a hundredth of it to the
    loss, as Switch does."""
    losses = [layer.routed.balance_loss for layer in layers_of_experts(model).values() if layer.routed is not None]
    if not losses:
        raise LaconicError("no layer of experts has processed anything yet; call balance_loss after the forward pass")
    return torch.stack(losses).sum()
