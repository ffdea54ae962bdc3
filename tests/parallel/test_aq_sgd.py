"""AQ-SGD: changes of samples' activations between stages."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.compression.base import Compressor
from laconic.compression.codec import Codec
from laconic.compression.per_hop import CodeOfHops
from laconic.errors import PipelineError
from laconic.language.grammar import parse_schedule
from laconic.parallel.pipeline.aq_sgd import (
    AqSgd,
    ChangesOfSamples,
    RandomlyRounded,
    from_message,
    message_bytes,
    to_message,
)
from laconic.parallel.pipeline.boundary import BoundaryCode, Coded
from laconic.parallel.pipeline.execute import PipelineDevice
from laconic.real.connect import connect
from laconic.registry import find

SAMPLES, WIDTH = 24, 7


def trained(
    codes: Any, epochs: int = 3, batch: int = 8, rate: float = 0.1
) -> tuple[list[Tensor], list[dict[int, Tensor]], float]:
    """Train three stages for some epochs over the same samples; return parameters, memories, and payload bytes sent."""
    worker = connect()
    pipeline = parse_schedule("one_f_one_b").pipeline(3, 2)
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(SAMPLES, WIDTH, generator=draw), torch.randn(SAMPLES, WIDTH, generator=draw)
    module = layers[worker.rank]
    made = codes()
    optimizer = torch.optim.SGD(module.parameters(), rate)
    device = PipelineDevice(
        pipeline, {worker.rank: module}, {worker.rank: optimizer}, nn.functional.mse_loss, worker, codes=made
    )
    for epoch in range(epochs):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for part in order.split(batch):
            device.step(x[part], y[part], part.tolist())
    memories = [code.memory for code in made.values() if isinstance(code, ChangesOfSamples)]
    return [p.detach() for p in module.parameters()], memories, worker.ledger.sent_bytes()


def run(codes: Any, **options: Any) -> list[Any]:
    return laconic.simulate(lambda: trained(codes, **options), 3).results


@pytest.mark.technique("aq_sgd", check=1)
def test_32_bits_are_the_pipeline_without_codes() -> None:
    plain, coded = run(dict), run(lambda: AqSgd(32, 32).codes(3))
    for (ours, _, _), (theirs, _, _) in zip(coded, plain, strict=True):
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.technique("aq_sgd", check=1)
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_both_ends_remember_the_same_bits(bits: int) -> None:
    results = run(lambda: AqSgd(bits, 8).codes(3, seed=connect().rank))
    for border in range(2):
        sender, receiver = results[border][1][border], results[border + 1][1][border]
        assert set(sender) == set(receiver) == set(range(SAMPLES))
        assert all(torch.equal(sender[sample], receiver[sample]) for sample in sender)


def test_bytes_are_in_full_once_and_few_afterwards() -> None:
    """First epoch 32 bits an element; then b bits and a scale of 32 bits a vector. Gradients have b bits always."""
    first, second = (sum(own[2] for own in run(lambda: AqSgd(4, 2).codes(3), epochs=n)) for n in (1, 2))
    gradient = 2 * SAMPLES / 4 * (4 * 4 + 7)  # four samples of 7 elements at 2 bits in 7 bytes, and four scales
    headers = 2 * 2 * 80
    assert first == 2 * SAMPLES * 4 * WIDTH + gradient + headers
    change = 2 * SAMPLES / 4 * (4 * 4 + 14)  # the same at 4 bits in 14 bytes
    assert second - first == change + gradient


@pytest.mark.technique("aq_sgd", check=2)
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_frozen_weights_the_error_shrinks_at_every_epoch(bits: int, seed: int) -> None:
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(seed))
    sender, receiver = ChangesOfSamples(bits), ChangesOfSamples(bits)
    samples = range(5)
    receiver.decode(sender.encode(torch.zeros_like(x), samples), x.shape, samples)  # what was seen before it moved
    errors = [float(x.norm())]
    for _ in range(6):
        message = sender.encode(x, samples)
        assert message.numel() == receiver.nbytes(x.shape, samples)
        errors.append(float((receiver.decode(message, x.shape, samples) - x).norm()))
    assert all(after < before for before, after in pairwise(errors) if before > 1e-6)
    assert errors[-1] < 0.01 * errors[1]
    direct = [(from_message(to_message(x, bits, None), x.shape, bits) - x).norm() for _ in range(3)]
    assert direct[0] == direct[1] == direct[2] == pytest.approx(errors[1])


def test_gradients_are_rounded_without_bias() -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(4))
    code = RandomlyRounded(2, seed=1)
    mean = torch.stack([code.decode(code.encode(x, None), x.shape, None) for _ in range(1000)]).mean(0)
    step = 2 * x.abs().amax(-1, keepdim=True) / 3
    assert ((mean - x).abs() < 4 * step / 2 / 1000**0.5).all()
    assert message_bytes(x.shape, 2) == 3 * 4 + 6


@pytest.mark.parametrize("word", ["int8", "cast_fp16"])
def test_any_code_of_the_house_works_between_stages(word: str) -> None:
    def codes() -> dict[tuple[str, int], BoundaryCode]:
        compressor: Compressor = find(word).target()  # type: ignore[union-attr]
        assert isinstance(compressor, Codec)
        return {(way, border): Coded(CodeOfHops(compressor)) for way in ("forward", "backward") for border in range(2)}

    plain, coded = run(dict), run(codes)
    for (ours, _, sent), (theirs, _, dense) in zip(coded, plain, strict=True):
        assert sent < 0.7 * dense
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=0.02, rtol=0.0)
            assert not torch.equal(a, b)


def test_samples_must_be_known() -> None:
    code = ChangesOfSamples(2)
    with pytest.raises(PipelineError, match="numbers of the batch's samples"):
        code.encode(torch.zeros(2, 3), None)
    with pytest.raises(PipelineError, match="twice"):
        code.encode(torch.zeros(2, 3), [4, 4])


class Block(nn.Module):
    """A causal transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        found: Tensor = self.layer(x, src_mask=mask, is_causal=True)
        return found


def sequences(count: int, seed: int, rules: int) -> tuple[Tensor, Tensor]:
    """Return sequences that one of some rules continues."""
    draw = torch.Generator().manual_seed(seed)
    start, stride = (torch.randint(n, (count, 1), generator=draw) for n in (16, rules))
    text = (start + (stride + 1) * torch.arange(13)) % 16
    return text[:, :-1], text[:, 1:]


def final_loss(codes: Any, seed: int) -> float:
    """Fine-tune a small transformer in two stages, three epochs on samples that it has not seen, and return the loss of
    the last epoch. Before that it was trained without codes, on sequences of fewer rules: fine-tuning is what the
    method is for, since the first epoch is sent in full."""

    def work() -> float:
        worker = connect()
        torch.manual_seed(seed)
        stages = [
            nn.Sequential(nn.Embedding(16, 32), Block(32)),
            nn.Sequential(Block(32), nn.LayerNorm(32), nn.Linear(32, 16)),
        ]
        module = stages[worker.rank]

        def train(codes: Any, x: Tensor, y: Tensor, epochs: int, rate: float) -> float:
            device = PipelineDevice(
                parse_schedule("one_f_one_b").pipeline(2, 2),
                {worker.rank: module},
                {worker.rank: torch.optim.Adam(module.parameters(), rate)},
                lambda output, target: nn.functional.cross_entropy(output.flatten(0, 1), target.flatten()),
                worker,
                codes=codes,
            )
            losses: list[float] = []
            for epoch in range(epochs):
                order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
                losses = [device.step(x[part], y[part], part.tolist()) or 0.0 for part in order.split(16)]
            return sum(losses) / len(losses)

        train({}, *sequences(256, seed, 3), 4, 3e-3)
        return train(codes(), *sequences(256, seed + 100, 5), 3, 1e-3)

    found: float = laconic.simulate(work, 2).results[1]
    return found


@pytest.mark.long
@pytest.mark.technique("aq_sgd", check=3)
def test_two_bits_forward_and_four_backward_end_near_the_plain_loss() -> None:
    plain = [final_loss(dict, seed) for seed in range(3)]
    few = [final_loss(lambda: AqSgd(2, 4).codes(2), seed) for seed in range(3)]
    direct = [
        final_loss(lambda: {("forward", 0): RandomlyRounded(2), ("backward", 0): RandomlyRounded(4, seed=1)}, seed)
        for seed in range(3)
    ]
    print(plain, few, direct)
    for a, b, c in zip(plain, few, direct, strict=True):
        assert b < 1.02 * a
        assert c > b
