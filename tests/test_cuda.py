"""One GPU, NCCL with one rank: all that can be seen on a machine with a single device.

Not shown here, and claimed nowhere: NCCL between several GPUs.
"""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import laconic
from laconic import kernels
from laconic.compression.bucket import RecordedKeys
from laconic.network.network_tree import Network
from laconic.virtual.compute import Compute

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10)).cuda()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 20, scaler: Any = None
) -> list[torch.Tensor]:
    draw = torch.Generator("cuda").manual_seed(0)
    for _ in range(steps):
        x = torch.randn(32, 64, device="cuda", generator=draw)
        y = torch.randint(0, 10, (32,), device="cuda", generator=draw)
        with torch.autocast("cuda", dtype=torch.float16, enabled=scaler is not None):
            loss = F.cross_entropy(model(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("strategy", ["bsp", "bsp / allreduce(rank) / sequential", "bsp / wfbp(0)"])
@pytest.mark.parametrize("options", [{}, {"fused": True}])
@pytest.mark.parametrize("scaled", [False, True])
def test_one_rank_over_nccl_is_plain_training(strategy: str, options: dict[str, Any], scaled: bool) -> None:
    torch.manual_seed(0)
    model = net()
    twin = copy.deepcopy(model)
    scalers = [torch.amp.GradScaler("cuda") if scaled else None for _ in range(2)]
    plain = train(twin, torch.optim.AdamW(twin.parameters(), lr=1e-2, **options), scaler=scalers[0])
    model, optimizer = laconic.distribute(model, torch.optim.AdamW(model.parameters(), lr=1e-2, **options), strategy)
    ours = train(model, optimizer, scaler=scalers[1])
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert torch.distributed.get_backend_config() == "cpu:gloo,cuda:nccl"


COMPRESSORS = [
    "fp16",
    "bf16+ef",
    "fp16+ef / sequential",
    "ef_signsgd",
    "scaled_sign+ef",
    "qsgd+ef",
    "qsgd(levels=127)",
    "topk(0.05)+ef",
    "topk(0.05, threshold=sampled)+ef",
    "power_sgd(4)+ef",
    "three_lc+ef",
    "one_bit_sgd",
    "sign_sgd",
    "terngrad",
    "natural",
]


@pytest.mark.parametrize("strategy", COMPRESSORS)
def test_compressors_run_on_the_device(strategy: str, tmp_path: Path) -> None:
    model, optimizer = net(), None
    model, optimizer = laconic.distribute(
        model, torch.optim.SGD(model.parameters(), lr=0.1), strategy, nonfinite="raise"
    )
    first = train(model, optimizer, 5)
    laconic.checkpoint(tmp_path, model, optimizer)
    train(model, optimizer, 5)
    laconic.resume(tmp_path, model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(first, model.parameters(), strict=True))


def test_hooks_hold_under_cuda_autograd_threads() -> None:
    """Accumulation, an unused branch and a second model: hooks run on the device's own thread."""
    models = [laconic.distribute(m, torch.optim.SGD(m.parameters(), lr=0.1), "bsp") for m in (net(), net())]
    for model, optimizer in models:
        with model.no_sync():
            F.cross_entropy(
                model(torch.randn(8, 64, device="cuda")), torch.zeros(8, dtype=torch.long, device="cuda")
            ).backward()
        model[0](torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        assert model[3].weight.grad is not None


@pytest.mark.parametrize("strategy", ["bsp / wfbp(0)", "bsp / allreduce(rank)", *COMPRESSORS[1:]])
def test_eight_virtual_workers_share_one_gpu(strategy: str) -> None:
    """All their hooks run on one autograd thread: whoever waited there would wait for ever."""

    def body() -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        for step in range(7):  # in the fourth, a bucket's exchange is recorded as graphs; later ones replay them
            draw = torch.Generator().manual_seed(100 * step + laconic.rank())
            x, y = torch.randn(8, 64, generator=draw).cuda(), torch.randint(0, 10, (8,), generator=draw).cuda()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    rows = laconic.simulate(body, 8, Network.flat(8, 1e9, 5e-5), Compute(0.01, 0.02)).results
    assert all(torch.equal(rows[0], row) for row in rows)
    if strategy.startswith("bsp"):
        torch.testing.assert_close(rows[0], alone(), rtol=1e-4, atol=1e-5)


def alone() -> torch.Tensor:
    """One worker with the batches of all eight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(7):
        batches = []
        for rank in range(8):
            draw = torch.Generator().manual_seed(100 * step + rank)
            batches.append((torch.randn(8, 64, generator=draw), torch.randint(0, 10, (8,), generator=draw)))
        x, y = (torch.cat(parts).cuda() for parts in zip(*batches, strict=True))
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained_on(device: str, strategy: str) -> torch.Tensor:
    """What eight virtual workers end with whose gradients are the same on every device."""

    def body() -> torch.Tensor:
        model = nn.Linear(300, 40, device=device)
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        for step in range(6):
            draw = torch.Generator().manual_seed(100 * step + laconic.rank())
            x = torch.randn(1, 300, generator=draw).to(device)  # of one sample: products, and no sums
            (model(x) * torch.arange(40.0, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()

    return laconic.simulate(body, 8, Network.flat(8, 1e9, 5e-5), Compute(0.01, 0.02)).results[0]


SAME_BITS = [
    "scaled_sign+ef",
    "qsgd+ef",
    "qsgd(norm=max)",
    "topk(0.05)+ef",
    "topk(0.05, threshold=sampled)+ef",
    "natural",
]


@pytest.mark.parametrize("strategy", SAME_BITS)
def test_cpu_and_gpu_send_the_same_bits(strategy: str) -> None:
    """Payloads decide what comes out, and all that is rounded is rounded in an order that both have."""
    assert torch.equal(trained_on("cuda", strategy), trained_on("cpu", strategy))


@pytest.mark.parametrize("compressor", ["topk(0.05, threshold=sampled)+ef", "power_sgd(4)+ef", "int8+two_hop"])
def test_exchanges_side_by_side_keep_their_messages(compressor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual workers hold several buckets' messages until all have sent theirs, while other buckets' graphs run, in
    another order than they were recorded in: the second pass has other buckets than the first."""

    def trained(exchanges_before_recording: int) -> torch.Tensor:
        monkeypatch.setattr("laconic.runtime.graphed_exchange._WARM_UP", exchanges_before_recording)

        def body() -> torch.Tensor:
            torch.manual_seed(0)
            model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(9)], nn.Linear(256, 3000)).cuda()
            strategy = f"bsp / {compressor} / wfbp(bucket_bytes=600000)"
            model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), 1e-3), strategy)
            draw = torch.Generator().manual_seed(laconic.rank())
            for _ in range(8):
                model(torch.randn(4, 256, generator=draw).cuda()).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()

        return laconic.simulate(body, 4).results[0]

    assert torch.equal(trained(3), trained(1000))


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("tensors", [1, 3])
def test_graphs_of_sparse_messages_see_new_gradients_and_keys(tensors: int, sampled: bool) -> None:
    """Encoding and decoding wait for nothing and copy nothing from the host, which a replay would not see."""
    lengths, most = (40_000, 70, 3000)[:tensors], (400, 2, 30)[:tensors]
    samples, widths = [(10_000, 90), (10_000, 2), (10_000, 30)][:tensors], (16, 7, 12)[:tensors]
    xs = kernels.TensorList(torch.zeros(n, device="cuda") for n in lengths)
    errors = kernels.TensorList(torch.zeros(n, device="cuda") for n in lengths)
    total, draw = torch.empty(sum(lengths), device="cuda"), torch.Generator("cuda").manual_seed(0)
    keys = RecordedKeys(torch.zeros(tensors, dtype=torch.int64, device="cuda"))

    def exchanged() -> None:
        if sampled:
            message = kernels.encode_sampled(xs, errors, samples, most, widths, keys)
        else:
            message = kernels.encode_largest(xs, errors, most, widths)
        kernels.average_places(total, torch.stack([message, message]), lengths, most, widths, sampled, 0.0)

    exchanged()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        exchanged()
    for step in range(3):
        for x in xs:
            x.normal_(generator=draw)
        keys.table.fill_(step)
        before = [error.clone() for error in errors]
        graph.replay()
        found, left = total.clone(), [error.clone() for error in errors]
        torch._foreach_copy_(list(errors), before)
        exchanged()
        assert torch.equal(found, total) and found.any()
        assert all(torch.equal(a, b) for a, b in zip(left, errors, strict=True))


def _by_gloo(rank: int, folder: str, strategy: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, strategy)
    torch.save(train(model, optimizer, 5), f"{folder}/{rank}")
    laconic.undistribute(model, optimizer)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("strategy", ["bsp", "ef_signsgd", "qsgd+ef", "topk(0.05)+ef"])
def test_gloo_carries_tensors_of_a_gpu(strategy: str, tmp_path: Path) -> None:
    """Two processes share the device, which NCCL does not allow."""
    torch.multiprocessing.spawn(_by_gloo, (str(tmp_path), strategy), nprocs=2)
    first, second = (torch.load(tmp_path / str(rank)) for rank in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q"]))


@pytest.mark.parametrize("chain", ["none", "qsgd+ef", "chunk_topk(chunk=64, k=8)+two_bit+ef(decay=0.95)"])
def test_offloaded_outer_state_gives_the_same_bits_and_leaves_the_gpu(
    chain: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Several buckets; saved right after an outer step, when copies may still be on their way to the host."""
    monkeypatch.setattr("laconic.runtime.parameter_buckets.BUCKET_BYTES", 1 << 16)

    def trained(offload: str) -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        gc.collect()  # what earlier tests left
        before = torch.cuda.memory_allocated()
        model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(16)]).cuda()
        strategy = f"diloco(3, offload={offload}) / {chain}"
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), 1e-2), strategy)
        for step in range(9):
            x = torch.randn(8, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 5:
                laconic.checkpoint(tmp_path / offload, model, optimizer)
        (tier,) = optimizer.session.partitions[0].tiers
        optimizer.session.state_dict()
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
        kept = [tier.sync_state[f"{name}.{i}"] for name in ("point", "momentum") for i in range(16)]
        assert all(x.is_pinned() == (offload == "true") for x in kept)
        result = [x.detach().cpu().clone() for x in (*model.parameters(), *kept)]
        laconic.resume(tmp_path / offload, model, optimizer)
        assert all(tier.sync_state[f"point.{i}"].is_pinned() == (offload == "true") for i in range(16))
        laconic.undistribute(model, optimizer)
        return result, held

    (near, held_near), (away, held_away) = trained("false"), trained("true")
    assert all(torch.equal(a, b) for a, b in zip(near, away, strict=True))
    copies = 2 if chain == "none" else 3  # point, momentum and the error memory
    assert held_near - held_away > 0.9 * copies * 16 * 256 * 256 * 4


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sentence", ["bsp", "diloco(3)", "bsp / topk(0.05)+ef", "accumulate(3)"])
def test_virtual_workers_compute_together_by_a_graph_what_each_computes_alone(sentence: str, compiled: bool) -> None:
    """More steps than a warm-up has, so that the last ones are a graph's, which reads parameters where they lie."""

    def mean_loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    def trained(together: bool) -> list[torch.Tensor]:
        def work() -> torch.Tensor:
            torch.manual_seed(laconic.rank())
            model: nn.Module = nn.Sequential(
                nn.Embedding(11, 64), nn.Linear(64, 90), nn.GELU(), nn.Linear(90, 11)
            ).cuda()
            optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)
            model, optimizer = laconic.distribute(model, optimizer, sentence)
            loss = laconic.batched(mean_loss, compiled) if together else mean_loss
            for step in range(12):
                draw = torch.Generator().manual_seed(100 * step + laconic.rank())
                x, y = torch.randint(11, (2, 32), generator=draw).cuda()
                loss(model, x, y).backward()
                laconic.clip_grad_norm_(optimizer, 1.0)
                optimizer.step()
                optimizer.zero_grad()
            laconic.finish(model, optimizer)
            return torch.cat([p.detach().flatten() for p in model.parameters()])

        return laconic.simulate(work, 4).results

    for alone, together in zip(trained(False), trained(True), strict=True):
        torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
