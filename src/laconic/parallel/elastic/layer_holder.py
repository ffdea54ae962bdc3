"""A worker of an elastic pipeline: it holds some layers of a model, computes with them, and hands them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laconic.errors import ContractError
from laconic.worker import ActorMessage

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of outputs and targets, the sum over samples."""


@dataclass(frozen=True)
class Model:
    """What all workers know of the model that is trained: its layers, without their state, and how it learns.

    - `layers`: makes the layers anew, in order.
    - `loss`: of the last layer's outputs, summed over samples.
    - `learning_rate`, `momentum`: of SGD.
    """

    layers: Callable[[], Sequence[nn.Module]]
    loss: Loss
    learning_rate: float
    momentum: float = 0.0


class LayerHolder:
    """An actor that holds layers.

    Reads are `forward` (computes layers `first` to `end`) and `give` (the state of a layer). Writes are `take` (a
    layer's state), `keep` (of all layers, these), `backward`, `contribute` and `step`.

    A backward keeps the gradients of its microbatch apart until the step: one that is repeated replaces itself, and one
    that turned out to be done elsewhere is left out of what is contributed. So a caller that does not know whether a
    call was carried out repeats it anywhere, and each sample counts once. A step that a layer has taken already, by its
    number, does nothing.
    """

    def __init__(self, model: Model) -> None:
        self.outgoing: list[tuple[str, ActorMessage]] = []
        self._model = model
        self._layers = list(model.layers())
        self._momentum: dict[int, list[Tensor]] = {}
        self.steps: dict[int, int] = {}  # by layer that is held
        self._gradients: dict[tuple[int, int], list[Tensor]] = {}  # by layer and microbatch

    def read(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        del sender
        if message.kind == "forward":
            with torch.no_grad():
                return ActorMessage("outputs", {}, (self._outputs(message),))
        if message.kind == "give":
            layer = message.number("layer")
            self._check(layer)
            parameters = [p.detach().clone() for p in self._layers[layer].parameters()]
            return ActorMessage("state", {"step": self.steps[layer]}, (*parameters, *self._momentum[layer]))
        raise ContractError(f"a layer holder cannot answer {message.kind!r}")

    def write(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        del sender
        if message.kind == "take":
            return self._take(message)
        if message.kind == "keep":
            return self._keep(message)
        if message.kind == "backward":
            return self._backward(message)
        if message.kind == "contribute":
            return self._contribute(message)
        if message.kind == "step":
            return self._step(message)
        raise ContractError(f"a layer holder cannot carry out {message.kind!r}")

    def lose(self, sender: int) -> None:
        del sender

    def state(self) -> dict[str, Any]:
        return {}  # what a lost worker held is copied from another

    def restore(self, state: dict[str, Any]) -> None:
        del state

    def _take(self, message: ActorMessage) -> ActorMessage:
        layer = message.number("layer")
        parameters = list(self._layers[layer].parameters())
        values, momentum = message.tensors[: len(parameters)], message.tensors[len(parameters) :]
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
        self._momentum[layer] = [value.clone() for value in momentum]
        self.steps[layer] = message.number("step")
        return ActorMessage("done")

    def _keep(self, message: ActorMessage) -> ActorMessage:
        """Drop all layers but these."""
        layers = message.fields["layers"]
        if not isinstance(layers, list):
            raise ContractError(f"the layers to keep are a list, not {layers!r}")
        self.steps = {layer: step for layer, step in self.steps.items() if layer in layers}
        self._momentum = {layer: held for layer, held in self._momentum.items() if layer in layers}
        self._gradients = {key: value for key, value in self._gradients.items() if key[0] in layers}
        return ActorMessage("done")

    def _outputs(self, message: ActorMessage) -> Tensor:
        values = message.tensors[0]
        for layer in range(message.number("first"), message.number("end")):
            self._check(layer)
            values = self._layers[layer](values)
        return values

    def _backward(self, message: ActorMessage) -> ActorMessage:
        """Compute the gradients of the layers for a microbatch; the second tensor is the outputs' gradient, or the
        targets where the last layer is among them."""
        first, end = message.number("first"), message.number("end")
        inputs = message.tensors[0].detach().clone()
        differentiable = inputs.is_floating_point()
        inputs.requires_grad_(differentiable)
        outputs = self._outputs(ActorMessage("", message.fields, (inputs,)))
        parameters = [list(self._layers[layer].parameters()) for layer in range(first, end)]
        wanted = [*(p for each in parameters for p in each), *([inputs] if differentiable else [])]
        if end == len(self._layers):
            loss = self._model.loss(outputs, message.tensors[1])
            found = torch.autograd.grad(loss, wanted)
        else:
            loss = torch.zeros(())
            found = torch.autograd.grad(outputs, wanted, message.tensors[1])
        gradients = iter(found)
        for layer, of_layer in zip(range(first, end), parameters, strict=True):
            self._gradients[layer, message.number("microbatch")] = [next(gradients) for _ in of_layer]
        back = next(gradients) if differentiable else torch.zeros(0)
        return ActorMessage("gradient", {}, (back, loss.detach()))

    def _contribute(self, message: ActorMessage) -> ActorMessage:
        """Return the sum of a layer's gradients over the microbatches that count here."""
        layer, counted = message.number("layer"), message.tensors[0].tolist()
        totals = [torch.zeros_like(p) for p in self._layers[layer].parameters()]
        for microbatch in counted:
            if (layer, microbatch) not in self._gradients:
                raise ContractError(f"this worker has no gradient of layer {layer} for microbatch {microbatch}")
            for total, gradient in zip(totals, self._gradients[layer, microbatch], strict=True):
                total += gradient
        return ActorMessage("sum", {"microbatches": len(counted)}, tuple(totals))

    def _step(self, message: ActorMessage) -> ActorMessage:
        layer, number = message.number("layer"), message.number("step")
        self._check(layer)
        if number == self.steps[layer] + 1:
            parameters = self._layers[layer].parameters()
            with torch.no_grad():
                for p, held, gradient in zip(parameters, self._momentum[layer], message.tensors, strict=True):
                    held.mul_(self._model.momentum).add_(gradient)
                    p.sub_(self._model.learning_rate * held)
            self.steps[layer] = number
        elif number > self.steps[layer]:
            raise ContractError(f"layer {layer} has taken {self.steps[layer]} steps and cannot take step {number} next")
        self._gradients = {key: value for key, value in self._gradients.items() if key[0] != layer}
        return ActorMessage("done")

    def _check(self, layer: int) -> None:
        if layer not in self.steps:
            raise ContractError(f"this worker does not hold layer {layer}; it holds {sorted(self.steps)}")


def fresh_states(model: Model) -> list[ActorMessage]:
    """Return for each layer the message by which a worker takes it as the model makes it, without any step taken."""
    found = []
    for number, layer in enumerate(model.layers()):
        parameters = [p.detach().clone() for p in layer.parameters()]
        momentum = [torch.zeros_like(p) for p in parameters]
        found.append(ActorMessage("take", {"layer": number, "step": 0}, (*parameters, *momentum)))
    return found
