"""Learned gradient compression: an autoencoder encodes the largest values in a quarter of the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.adam import adam

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.low_rank import first_draw
from laconic.compression.selector import Selected
from laconic.compression.topk import TopK
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Gather, Meet, Meets

_CHANNELS = 4  # channels of the code, at a sixteenth of the length
_STRIDE = 16  # four halvings
_SLOPE = 0.2  # slope of the leaky activation below zero


@technique(
    "lgc",
    paper="Abrahamyan, Chen, Bekoulis, Deligiannis, IEEE TNNLS 33(12), 2021",
    formula="result = D(mean E(x on the k places that are largest at one worker, in turn)), E to k/4 numbers, learned",
)
@dataclass(frozen=True)
class LGC(Compressor):
    """The largest values, encoded by an autoencoder that workers train on them: a quarter as many numbers.

    There are three phases: dense messages first; then the largest values, on which all workers train the same small
    autoencoder; then its codes, whose mean an all-reduce makes and every worker decodes. Write lgc+ef.

    In the last phase one worker, in rotation, broadcasts which places count for all. The memory keeps what was not
    selected, not what the autoencoder blurs. All workers receive all values while it learns, so that training takes no
    further bytes; at its end the first worker's weights are broadcast, once. Tensors of fewer than 16 selected values
    are sent dense.

    Reading chosen: the ring form (that of a server, with one worker's code and every worker's innovation, is not here);
    a code for each tensor, `flat+lgc` for one of all; layers without offsets, so that a vector's size passes through;
    the loss asks for every worker's vector and for their mean from the mean code. The paper's first and last layers are
    written out: {"conv1.*": none, "fc.*": topk(0.001)+ef, else: lgc+ef}.
    """

    cost: ClassVar[str] = "matmul"
    ratio: float = knob(0.001, above=0, high=1, gentler="more", doc="share of the coordinates that are selected")
    dense: int = knob(200, low=0, doc="steps of the first phase, in which everything is sent")
    learn: int = knob(300, low=1, doc="steps of the second phase, in which the autoencoder is trained")
    width: int = knob(32, low=1, doc="channels of the autoencoder's hidden layers")
    lr: float = knob(0.002, above=0, doc="learning rate of the autoencoder")

    @property
    def meets(self) -> Meets:
        return "broadcast"

    @property
    def asks(self) -> tuple[type, ...]:
        return (*super().asks, Gather)

    @property
    def settling(self) -> int:
        return self.dense + self.learn

    @property
    def selected(self) -> Selected:
        """The codec that sends the values of the second phase."""
        return Selected(TopK(ratio=self.ratio))

    def count(self, numel: int) -> int:
        return self.selected.selector.count(numel)

    def accepts(self, spec: TensorSpec) -> bool:
        return super().accepts(spec) and self.count(spec.numel) >= _STRIDE

    def init(self, spec: TensorSpec) -> State:
        c, draw = self.width, first_draw(spec)
        encoder = [(c, 1, 3), (c, c, 3), (c, c, 3), (c, c, 3), (_CHANNELS, c, 3)]
        decoder = [(_CHANNELS, c, 4), (c, c, 4), (c, c, 4), (c, c, 4), (1, c, 1)]
        fan_in = [b * k for _, b, k in encoder] + [a * k / 2 for a, _, k in decoder[:-1]] + [c]
        state = {"met": torch.tensor(0)}
        for i, (shape, each) in enumerate(zip(encoder + decoder, fan_in, strict=True)):
            state[f"weight.{i}"] = torch.randn(shape, generator=draw) / each**0.5
            state |= {f"{moment}.{i}": torch.zeros(shape) for moment in ("first", "second")}
        return state

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        met = int(state["met"])
        if met < self.dense:
            own = x.clone()
            outcome = Outcome((yield meet.mean(x)), state, own)
        elif met < self.settling:
            outcome = yield from self._learning(x, state, meet)
        else:
            outcome = yield from self._coded(x, state, meet)
        return Outcome(outcome.result, {**outcome.state, "met": state["met"] + 1}, outcome.sent)

    def _learning(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        """Exchange as `topk` does, and train on the values of all workers."""
        single, how = x.float(), self.selected
        payload = how.encode(single, meet)
        rows = yield meet.gather(payload)
        total = torch.zeros_like(single)
        for row in rows:
            how.add(total, row, meet)
        values = torch.stack([how.read(row, x.numel(), meet)[1] for row in rows])
        weights = weights_of(state)
        self.train(values, state)
        if int(state["met"]) == self.settling - 1:
            received = yield meet.broadcast(torch.cat([w.reshape(-1) for w in weights]), 0)
            for w, common in zip(weights, received.split([w.numel() for w in weights]), strict=True):
                w.copy_(common.view(w.shape))
        sent = how.decode(payload, x.shape, meet)
        return Outcome(total.div_(meet.size).to(x.dtype), state, sent.to(x.dtype))

    def _coded(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        """Exchange the codes of the values at the leader's places."""
        flat, leader, weights = x.reshape(-1).float(), int(state["met"]) % meet.size, weights_of(state)
        chosen = self.selected.selector.choose(flat, meet).to(torch.int32)
        places = (yield meet.broadcast(chosen, leader)).long()
        code = yield meet.mean(encoded(flat[places][None], weights).reshape(-1))
        result, sent = torch.zeros(2, flat.numel(), device=x.device)
        result[places] = decoded(code.view(1, _CHANNELS, -1), weights)[0, : len(places)]
        sent[places] = flat[places]
        return Outcome(result.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))

    def train(self, values: Tensor, state: State) -> None:
        """Make one training step on these vectors, in place; vectors that are not finite or zero are skipped."""
        size = values.norm() / values.numel() ** 0.5
        if not bool(size.isfinite()) or not bool(size > 0):
            return
        weights, k = weights_of(state), values.shape[1]
        wanted = values / size
        with torch.enable_grad():
            learning = [w.detach().clone().requires_grad_() for w in weights]
            codes = encoded(wanted, learning)
            each = functional.mse_loss(decoded(codes, learning)[:, :k], wanted)
            middle, of_mean = wanted.mean(0, keepdim=True), codes.mean(0, keepdim=True)
            loss = each + functional.mse_loss(decoded(of_mean, learning)[:, :k], middle)
            gradients = list(torch.autograd.grad(loss, learning))
        firsts, seconds = ([state[f"{moment}.{i}"] for i in range(len(weights))] for moment in ("first", "second"))
        done = torch.tensor(float(int(state["met"]) - self.dense))
        counts = [done.clone() for _ in weights]
        with torch.no_grad():
            adam(
                weights,
                gradients,
                firsts,
                seconds,
                [],
                counts,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self.lr,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return sum(nbytes for _, nbytes in self.prices(spec, size))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        """Return the messages of the last phase."""
        k = self.count(spec.numel)
        return ("broadcast", 4 * k), ("reduce", 4 * _CHANNELS * -(-k // _STRIDE))


def weights_of(state: State) -> list[Tensor]:
    """Return the weights of the encoder's five layers, then the decoder's."""
    return [state[f"weight.{i}"] for i in range(10)]


def encoded(vectors: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Encode rows in a quarter of their numbers: four channels at a sixteenth of the length."""
    x = functional.pad(vectors, (0, -vectors.shape[1] % _STRIDE))[:, None]
    for w in weights[:4]:
        x = functional.leaky_relu(functional.conv1d(x, w, stride=2, padding=1), _SLOPE)
    return functional.conv1d(x, weights[4], padding=1)


def decoded(codes: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Decode such codes to rows of the padded length."""
    x = codes
    for w in weights[5:9]:
        x = functional.leaky_relu(functional.conv_transpose1d(x, w, stride=2, padding=1), _SLOPE)
    return functional.conv1d(x, weights[9])[:, 0]
