"""A bucket that is exchanged as a whole: the same bits, bytes and memory as one tensor after another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import laconic
from laconic.compression.bucket import BucketMeet, TensorBucket
from laconic.compression.optional import exchange_bucket_of
from laconic.runtime.current_worker import current
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.tiers import Tier
from laconic.strategy import Strategy
from laconic.values.tensor_spec import TensorSpec
from tests.cases import first_of

SHAPES = ((7, 5), (33,), (1,), (4, 3, 3), (129,), (600,))
CHAINS = (
    "cast_bf16",
    "cast_fp16+ef",
    "cast_bf16+ef(decay=0.5, low_pass=0.5, inside=true)",
    "scaled_sign",
    "scaled_sign+ef",
    "scaled_sign+ef(decay=0.9)",
    "qsgd",
    "qsgd+ef",
    "qsgd(127, norm=max)+ef",
    "natural_compression+ef",
    "three_lc(runs=false)+ef",
    "power_sgd(2)",
    "power_sgd(2)+ef",
    "topk(0.1)+ef",
    "topk(0.1, threshold=sampled)+ef",
    "topk(0.2, threshold=sampled, index=plain)",
    "topk(0.2, threshold=sampled)+two_hop",
    "int8+two_hop",
)


def carried_out(tier: Tier, specs: list[TensorSpec], tensors: list[Tensor], step: int) -> list[Tensor]:
    communication = InFlight(tier.average(specs, [x.clone() for x in tensors], step))
    complete([communication])
    result: list[Tensor] = communication.result
    return result


@pytest.mark.parametrize("workers", first_of([3, 1], 1))
@pytest.mark.parametrize("chain", CHAINS)
def test_a_bucket_has_the_bits_bytes_and_memory_of_its_tensors(chain: str, workers: int) -> None:
    assert_alike(chain, SHAPES, workers)


@pytest.mark.parametrize(
    "chain", ["chunk_topk(chunk=64, k=8)+two_bit", "chunk_topk(chunk=64, k=8)+two_bit+ef(decay=0.9)"]
)
def test_so_has_a_bucket_of_chunks(chain: str) -> None:
    """Of a tensor shorter than a chunk, of one with a shorter chunk at its end, and of one with full chunks only."""
    compressor = Strategy.parse(f"bsp / {chain}").compressor  # type: ignore[union-attr]
    shapes = ((7, 5), (33,), (2, 64), (200,), (264,))
    assert_alike(chain, shapes, 3)
    specs = tuple(TensorSpec(f"p{i}", shape, torch.float32) for i, shape in enumerate(shapes))
    numel = sum(spec.numel for spec in specs)
    bucket = TensorBucket(specs, torch.zeros(numel), {"error": torch.zeros(numel)})
    assert exchange_bucket_of(compressor, bucket, BucketMeet(0, 3, False, specs, None)) is not None


def assert_alike(chain: str, shapes: Sequence[tuple[int, ...]], workers: int) -> None:
    sentence = Strategy.parse(f"bsp / {chain}")
    specs = [TensorSpec(f"p{i}", shape, torch.float32) for i, shape in enumerate(shapes)]

    def script() -> list[float]:
        worker = current()
        assert worker is not None
        whole, single = (Tier(sentence, worker.world, worker=worker, rate=lambda: 0.25) for _ in range(2))  # type: ignore[arg-type]
        draws, payloads = torch.Generator().manual_seed(worker.rank), []
        for step in range(3):
            tensors = [torch.randn(shape, generator=draws) for shape in shapes]
            before = worker.ledger.sent_bytes()
            together = carried_out(whole, specs, tensors, step)
            between = worker.ledger.sent_bytes()
            apart = [carried_out(single, [s], [x], step)[0] for s, x in zip(specs, tensors, strict=True)]
            payloads += [between - before, worker.ledger.sent_bytes() - between]
            assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
        for name, state in single.memory.items():
            assert all(torch.equal(whole.memory[name][key], value) for key, value in state.items()), name
        return payloads

    for payloads in laconic.simulate(script, workers).results:
        assert payloads[::2] == pytest.approx(payloads[1::2])


def test_a_subclass_that_changes_one_exchange_is_exchanged_one_by_one() -> None:
    from laconic.compression.bucket import BucketMeet, Moment, TensorBucket
    from laconic.compression.cast import CastBF16
    from laconic.compression.optional import exchange_bucket_of
    from laconic.runtime.meeting import Meeting

    class Halved(CastBF16):
        def exchange(self, x, state, meet):  # type: ignore[no-untyped-def]
            return super().exchange(x / 2, state, meet)

    spec = TensorSpec("x", (4,), torch.float32)
    bucket = TensorBucket((spec,), torch.zeros(4))
    meet = BucketMeet(0, 1, False, (spec,), Moment(0, 1.0, lambda spec: Meeting(0, 1, 0, spec.name)))
    assert exchange_bucket_of(CastBF16(), bucket, meet) is not None
    assert exchange_bucket_of(Halved(), bucket, meet) is None


@pytest.mark.parametrize("chain", ["scaled_sign+ef", "qsgd+ef", "power_sgd(2)+ef", "topk(0.1)+ef", "int8+two_hop"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_16_bits_are_compressed_and_remembered_in_float32(chain: str, dtype: torch.dtype) -> None:
    sentence = Strategy.parse(f"bsp / {chain}")
    short = tuple(TensorSpec(f"p{i}", shape, dtype) for i, shape in enumerate([(7, 5), (40, 30)]))
    long = [TensorSpec(spec.name, spec.shape, torch.float32) for spec in short]

    def script() -> None:
        worker = current()
        assert worker is not None
        whole, listed, wide = (Tier(sentence, worker.world, worker=worker) for _ in range(3))  # type: ignore[arg-type]
        draws, flat = torch.Generator().manual_seed(worker.rank), torch.empty(35 + 1200, dtype=dtype)
        for step in range(3):
            tensors = [torch.randn(spec.shape, generator=draws).to(dtype) for spec in short]
            expected = carried_out(wide, long, [x.float() for x in tensors], step)
            found = carried_out(listed, list(short), tensors, step)
            flat.copy_(torch.cat([x.reshape(-1) for x in tensors]))
            communication = whole.whole.average(short, flat, step)
            assert communication is not None
            complete([InFlight(communication)])
            for x, y, z in zip(expected, found, flat.split([35, 1200]), strict=True):
                assert torch.equal(x.to(dtype), y)
                assert torch.equal(y.reshape(-1), z)
        for name, state in wide.memory.items():
            for key, value in state.items():
                assert torch.equal(listed.memory[name][key], value)
                assert torch.equal(whole.memory[name][key], value)

    laconic.simulate(script, 2)
