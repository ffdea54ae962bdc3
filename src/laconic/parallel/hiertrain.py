"""Training by HierTrain's split: three machines share the layers and the samples of a mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from laconic.parallel.planners.hiertrain import HierProfile, Split
from laconic.worker import Group

Spend = Callable[[float], None]


class HierTrainer:
    """One of three machines in training by a split. Each has a copy of the model, of equal parameters.

    An iteration equals a step of plain SGD, or of any optimizer, on the whole mini-batch, for layers that treat samples
    alone: statistics of a batch, as in batch normalisation, would be of each machine's own samples.

    - `group`: the three machines by rank; the first holds the data.
    - `layers`: the model, in the order of its layers.
    - `optimizer`: of the machine in role o; the others' is not used.
    - `profile`, `spend`: what layers take, and how the machine's clock is told that it has computed so long; without
      them computing takes what it takes.
    """

    def __init__(
        self,
        group: Group,
        layers: Sequence[nn.Module],
        optimizer: Optimizer,
        split: Split,
        profile: HierProfile | None = None,
        spend: Spend = lambda seconds: None,
    ) -> None:
        self.group, self.layers, self.optimizer, self.split = group, layers, optimizer, split
        self.profile, self._spend = profile, spend
        self.role = split.machines.index(group.rank)
        self._shapes = dict[int, torch.Size]()  # of a sample's outputs after so many layers
        self._dtype = next(p for layer in layers for p in layer.parameters()).dtype

    def step(self, inputs: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
        """Train on a mini-batch; return its loss on the machine in role o, and None on the others.

        - `inputs`, `targets`: the mini-batch on the first machine, and tensors of the same shapes on the others.
        - `loss`: the mean over samples.
        """
        (mine, targets) = self._distribute(inputs, targets)
        with torch.no_grad():
            self._learn_shapes(inputs)
        if self.role == 0:
            return self._all_layers(mine, targets, loss)
        self._first_layers(mine)
        return None

    def _distribute(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Send samples from the first machine to those that compute on them, and all targets to o."""
        parts = list(inputs.split(list(self.split.samples)))
        o = self.split.machines[0]
        if self.group.rank == 0:
            sends = [
                self.group.send(part.contiguous(), machine, 0)
                for machine, part in zip(self.split.machines, parts, strict=True)
                if machine != 0 and len(part)
            ]
            if o != 0:
                sends.append(self.group.send(targets, o, 1))
            for handle in sends:
                handle.wait()
            return parts[self.role], targets
        mine, labels = torch.empty_like(parts[self.role]), torch.empty_like(targets)
        if len(mine):
            self.group.receive(mine, 0, 0).wait()
        if self.group.rank == o:
            self.group.receive(labels, 0, 1).wait()
        return mine, labels

    def _learn_shapes(self, inputs: Tensor) -> None:
        """Note the shapes that others send, once, from one sample of zeros."""
        if not self._shapes and self.role == 0:
            sample = torch.zeros_like(inputs[:1])
            for depth, layer in enumerate(self.layers, 1):
                sample = layer(sample)
                self._shapes[depth] = sample.shape[1:]

    def _first_layers(self, mine: Tensor) -> None:
        """Compute s's or l's layers on its samples, there and back, and take over the new weights."""
        depth, o = self.split.depths[self.role - 1], self.split.machines[0]
        if not len(mine):
            return
        parameters = [p for layer in self.layers[:depth] for p in layer.parameters()]
        for parameter in parameters:
            parameter.grad = None
        output = self._forward(mine, 0, depth)
        self.group.send(output.detach().contiguous(), o, 2).wait()
        gradient = torch.empty_like(output)
        self.group.receive(gradient, o, 3).wait()
        self._backward(output, gradient, 0, depth, len(mine))
        self.group.send(_flat([p.grad for p in parameters]), o, 4).wait()
        weights = torch.empty(sum(p.numel() for p in parameters), dtype=self._dtype)
        self.group.receive(weights, o, 5).wait()
        _copy_out(weights, parameters)

    def _all_layers(self, mine: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Compute o's part: all layers on its own samples, those behind the others' layers on theirs."""
        _, s, l_ = self.split.machines
        shallow, deep = self.split.depths
        own, of_s, of_l = self.split.samples
        self.optimizer.zero_grad()
        first = self._forward(mine, 0, shallow)
        joined = self._joined(first, s, shallow, of_s)
        second = self._forward(joined, shallow, deep)
        whole = self._joined(second, l_, deep, of_l)
        output = self._forward(whole, deep, len(self.layers))
        found = loss(output, targets)
        self._backward(found, None, deep, len(self.layers), len(whole))
        self._return(whole, l_, own + of_s)
        self._backward(second, _gradient(whole)[: own + of_s], shallow, deep, own + of_s)
        self._return(joined, s, own)
        self._backward(first, _gradient(joined)[:own], 0, shallow, own)
        others = [(machine, depth) for machine, depth in ((s, shallow), (l_, deep)) if depth]
        for machine, depth in others:
            self._add_gradients(machine, depth)
        if self.profile is not None:
            self._spend(sum(self.profile.machines[self.group.rank].update_seconds))
        self.optimizer.step()
        sends = [self.group.send(_flat(self._parameters(depth)), machine, 5) for machine, depth in others]
        for handle in sends:
            handle.wait()
        return found.detach()

    def _joined(self, own: Tensor, machine: int, depth: int, count: int) -> Tensor:
        """Return o's outputs with those of another machine behind them, as the input of the layers that follow."""
        if not count:
            return own.detach().requires_grad_()
        received = torch.empty((count, *self._shapes[depth]), dtype=self._dtype)
        self.group.receive(received, machine, 2).wait()
        return torch.cat([own.detach(), received]).requires_grad_()

    def _return(self, joined: Tensor, machine: int, first: int) -> None:
        """Send another machine the gradients of its samples' outputs."""
        if len(joined) > first:
            self.group.send(_gradient(joined)[first:].contiguous(), machine, 3).wait()

    def _add_gradients(self, machine: int, depth: int) -> None:
        parameters = self._parameters(depth)
        received = torch.empty(sum(p.numel() for p in parameters), dtype=self._dtype)
        self.group.receive(received, machine, 4).wait()
        for parameter, part in zip(parameters, received.split([p.numel() for p in parameters]), strict=True):
            part = part.view_as(parameter)
            parameter.grad = part if parameter.grad is None else parameter.grad + part

    def _parameters(self, depth: int) -> list[nn.Parameter]:
        return [p for layer in self.layers[:depth] for p in layer.parameters()]

    def _forward(self, inputs: Tensor, start: int, stop: int) -> Tensor:
        if self.profile is not None:
            self._spend(len(inputs) * sum(self.profile.machines[self.group.rank].forward_seconds[start:stop]))
        for layer in self.layers[start:stop]:
            inputs = layer(inputs)
        return inputs

    def _backward(self, output: Tensor, gradient: Tensor | None, start: int, stop: int, samples: int) -> None:
        if self.profile is not None:
            self._spend(samples * sum(self.profile.machines[self.group.rank].backward_seconds[start:stop]))
        if not samples:
            return
        if output.grad_fn is not None:
            output.backward(gradient)
        elif output.requires_grad:
            output.grad = gradient  # no layers between: the input is the output


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _flat(tensors: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors if t is not None])


@torch.no_grad()
def _copy_out(flat: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))
