"""Learned gradient compression: three phases, and an autoencoder that must be worth its quarter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.compression.lgc import LGC, decoded, encoded, weights_of
from laconic.compression.topk import largest
from laconic.compression.wrapper import inner_of
from laconic.strategy import Strategy
from laconic.values.tensor_spec import TensorSpec
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.real.pool import Pool, PoolRank
from tests.sync.digits import data, sgd, trained
from tests.virtual.test_equivalence import Net, train_among, two_of

WORKERS = 4


def heavy(step: int, dtype: torch.dtype = torch.float32, workers: int = WORKERS) -> list[Tensor]:
    return [tensor("heavy", (40, 24), seed=50 * step + rank, dtype=dtype) for rank in range(workers)]


@pytest.mark.long
@pytest.mark.technique("lgc", check=1)
def test_the_first_phases_are_the_mean_and_topk_with_memory() -> None:
    made, top = compressor("lgc(ratio=0.1, dense=3, learn=9, width=4)+ef"), compressor("topk(0.1)+ef")
    states, others = ([c.init(spec_of(heavy(0)[0])) for _ in range(WORKERS)] for c in (made, top))
    for step in range(9):
        inputs = heavy(step)
        outcomes = meet(made, inputs, states, step)
        states = [o.state for o in outcomes]
        if step < 3:
            expected = torch.stack(inputs).sum(0) / WORKERS
        else:
            plain = meet(top, inputs, others, step)
            others, expected = [o.state for o in plain], plain[0].result
        assert all(torch.equal(o.result, expected) for o in outcomes)
        assert all(torch.equal(a["error"], b["error"]) for a, b in zip(states, others, strict=True))


@pytest.mark.long
@pytest.mark.technique("lgc", check=1)
@pytest.mark.parametrize(
    ("phases", "same"), [("dense=12", "bsp"), ("dense=0", "{matrix: topk(0.1)+ef, else: none}")], ids=["bsp", "topk"]
)
def test_the_first_phases_train_as_bsp_and_topk_do(phases: str, same: str) -> None:
    """The reference task, to the bit."""
    learned = trained(f"{{matrix: lgc(ratio=0.1, {phases}, learn=30, width=4)+ef, else: none}}", 12, 8, sgd(0.1))
    assert torch.equal(learned.parameters, trained(same, 12, 8, sgd(0.1)).parameters)


class Task:
    """The first layer's gradients of the digits, of each of four workers, and steps on what all send of them."""

    def __init__(self, words: str) -> None:
        self.made = compressor(words)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.states = [self.made.init(spec_of(self.model[0].weight)) for _ in range(WORKERS)]
        self.draw, self.steps = torch.Generator().manual_seed(0), 0

    def gradients(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        chosen = torch.randint(len(labels), (16,), generator=self.draw)
        loss = functional.cross_entropy(self.model(images[chosen]), labels[chosen])
        return list(torch.autograd.grad(loss, list(self.model.parameters())))

    def step(self, rate: float = 0.1) -> None:
        images, labels, _, _ = data()
        found = [self.gradients(images, labels) for _ in range(WORKERS)]
        outcomes = meet(self.made, [one[0] for one in found], self.states, self.steps)
        self.states, self.steps = [o.state for o in outcomes], self.steps + 1
        means = [outcomes[0].result, *(torch.stack(each).mean(0) for each in zip(*(f[1:] for f in found), strict=True))]
        with torch.no_grad():
            for p, mean in zip(self.model.parameters(), means, strict=True):
                p -= rate * mean

    def held_out(self) -> list[Tensor]:
        """What each worker would select of gradients of images that nobody has trained on."""
        _, _, images, labels = data()
        vectors = [(self.gradients(images, labels)[0] + s["error"]).reshape(-1) for s in self.states]
        return [v[largest(v, math.ceil(0.1 * v.numel()))] for v in vectors]


@pytest.mark.long
@pytest.mark.technique("lgc", check=2)
def test_the_autoencoder_is_better_than_the_largest_quarter() -> None:
    """At the end of the second phase, on values it has not seen: about 0.3 of their energy is lost against 0.55."""
    task = Task("lgc(ratio=0.1, dense=10, learn=90, width=16, lr=0.004)+ef")
    for _ in range(100):
        task.step()
    weights = weights_of(inner_of(task.states[0]))
    lost = torch.zeros(2, dtype=torch.float64)
    for values in task.held_out():
        code = encoded(values[None], weights)
        assert code.numel() == 4 * math.ceil(len(values) / 16)
        kept, best = torch.zeros_like(values), largest(values, code.numel())
        kept[best] = values[best]
        read = decoded(code, weights)[0, : len(values)]
        whole = values.square().sum()
        lost += torch.stack([(values - read).square().sum() / whole, (values - kept).square().sum() / whole]) / WORKERS
    print(f"lost: {lost[0]:.3f} in the code, {lost[1]:.3f} without what is not among the largest quarter")
    assert lost[0] < 0.8 * lost[1]
    before = {k: v.clone() for k, v in inner_of(task.states[0]).items()}
    task.step()
    after = inner_of(task.states[0])
    assert all(torch.equal(before[k], after[k]) for k in before if k != "met"), "it learns no more"


@pytest.mark.technique("lgc", check=3)
@pytest.mark.parametrize("eights", [2, 6, 31])
def test_bytes_of_the_last_phase(eights: int) -> None:
    """mu places of 32 bits from one worker, mu/4 numbers of 32 bits reduced, where mu is a multiple of 16."""
    mu = 8 * eights
    made, x = compressor("lgc(ratio=0.1, dense=1, learn=2, width=4)"), torch.randn(10 * mu)
    states, handed = [made.init(spec_of(x)) for _ in range(3)], []
    for step in range(4):
        handed = []
        outcomes = meet(made, [x + rank for rank in range(3)], states, step, payloads=handed)
        states = [o.state for o in outcomes]
    for sent in handed:
        assert [(name, t.nbytes) for name, t in sent] == [("Broadcast", 4 * mu), ("Reduce", 16 * -(-mu // 16))]
    assert made.payload_bytes(spec_of(x), 3) == 4 * mu + 16 * -(-mu // 16)
    if mu % 16 == 0:
        assert 8 * made.payload_bytes(spec_of(x), 3) == 32 * mu + 32 * mu // 4
    assert made.settling == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_agree_in_every_phase_and_the_memory_keeps_the_rest(dtype: torch.dtype, workers: int) -> None:
    made = compressor("lgc(ratio=0.1, dense=1, learn=3, width=4)+ef")
    states = [made.init(spec_of(heavy(0, dtype)[0])) for _ in range(workers)]
    for step in range(8):
        inputs = heavy(step, dtype, workers)
        before = [s["error"].clone() for s in states]
        outcomes = meet(made, inputs, states, step)
        states = [o.state for o in outcomes]
        weights = [weights_of(inner_of(s)) for s in states]
        assert all(torch.equal(a, b) for other in weights for a, b in zip(weights[0], other, strict=True))
        for x, e, o in zip(inputs, before, outcomes, strict=True):
            assert torch.equal(o.result, outcomes[0].result) and o.result.dtype == dtype and o.sent is not None
            torch.testing.assert_close(o.sent + o.state["error"], x + e)
        if step >= 4:
            communication = outcomes[0].sent.ne(0)  # type: ignore[union-attr]
            leader = (inputs[step % workers] + before[step % workers]).float().reshape(-1)
            assert torch.equal(communication.reshape(-1).nonzero().view(-1), largest(leader, 96))
            assert not bool(outcomes[0].result[~communication].any()), "nothing is applied that the memory keeps"


def test_a_vectors_size_passes_through() -> None:
    """No offsets: twice the values, twice the code; so that gradients may shrink as training goes on."""
    weights = weights_of(LGC(ratio=0.1).init(TensorSpec("x", (640,), torch.float32)))
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(encoded(x / 2**20, weights), encoded(x, weights) / 2**20)
    code = encoded(x, weights)
    torch.testing.assert_close(decoded(2**10 * code, weights), 2**10 * decoded(code, weights))


@pytest.mark.parametrize("poison", [math.inf, math.nan])
def test_what_is_not_finite_teaches_nothing_and_is_seen(poison: float) -> None:
    made = compressor("lgc(ratio=0.1, dense=0, learn=2, width=4)")
    states = [made.init(spec_of(heavy(0)[0])) for _ in range(2)]
    for step in range(3):
        inputs = heavy(step, workers=2)
        if step != 1:
            inputs[0][3, 4] = poison
        outcomes = meet(made, inputs, states, step)
        states = [o.state for o in outcomes]
        assert all(bool(w.isfinite().all()) for w in weights_of(states[0]))
        assert bool(outcomes[0].result.isfinite().all()) == (step == 1)


def test_small_tensors_go_dense_and_servers_are_refused() -> None:
    made = compressor("lgc")
    assert not made.accepts(TensorSpec("x", (15_000,), torch.float32))
    assert made.accepts(TensorSpec("x", (16_000,), torch.float32))
    with pytest.raises(laconic.errors.StrategyError, match="cannot carry out"):
        Strategy.parse("bsp / lgc / ps")


@pytest.mark.long
def test_digits_are_learned_through_all_phases() -> None:
    """Training goes on in the last one: the loss is well below that at its beginning."""
    words = "{matrix: lgc(ratio=0.2, dense=10, learn=40, width=8, lr=0.004)+ef, else: none}"
    before, after = (trained(words, steps, 8, sgd(0.2)) for steps in (50, 110))
    print(f"loss {before.loss:.3f}, then {after.loss:.3f}; accuracy {after.accuracy:.1f}")
    assert after.loss < 0.85 * before.loss


def virtually(member: PoolRank, strategy: str) -> list[torch.Tensor]:
    """In one of the same processes: a convolution's bits may depend on how many threads a process once had."""
    return list(laconic.simulate(lambda: train_among(strategy, None), workers=2).results)


@pytest.mark.long
def test_two_processes_and_two_virtual_workers_end_with_the_same_bits(pool: Pool) -> None:
    """Through all phases, with training inside the backward pass."""
    strategy = "lgc(ratio=0.5, dense=1, learn=3, width=4)+ef"
    assert any(LGC(ratio=0.5).accepts(spec_of(p)) for p in Net().parameters())
    real = pool.run(two_of, strategy, workers=2)
    (virtual,) = pool.run(virtually, strategy, workers=1)
    assert all(torch.equal(a, b) for a, b in zip(real, virtual, strict=True))


def test_the_first_weights_neither_blow_up_nor_lose_a_vector() -> None:
    """Each layer's weights are drawn for its fan-in: ten layers leave a vector's size within two orders."""
    for seed, width in enumerate((8, 32)):
        weights = weights_of(LGC(ratio=0.1, width=width).init(TensorSpec(f"x{seed}", (6400,), torch.float32)))
        x = torch.randn(8, 640, generator=torch.Generator().manual_seed(seed))
        code = encoded(x, weights)
        again = decoded(code, weights)
        assert 0.05 < float(code.std()) < 5 and 0.01 < float(again.std()) < 5


def test_workers_learn_every_vector_and_their_mean_from_the_mean_code() -> None:
    """One step: Adam's first moment is a tenth of the gradient of both losses, of vectors scaled to size one."""
    made = LGC(ratio=0.1, dense=0, learn=5, width=4)
    state = made.init(TensorSpec("x", (480,), torch.float32))
    weights = [w.clone().requires_grad_() for w in weights_of(state)]
    values = torch.randn(3, 48, generator=torch.Generator().manual_seed(2))
    made.train(values, state)
    unit = values / values.square().mean().sqrt()
    codes = [encoded(row[None], weights) for row in unit]
    loss = sum((decoded(code, weights)[0] - row).square().mean() / 3 for code, row in zip(codes, unit, strict=True))
    of_mean = decoded((codes[0] + codes[1] + codes[2]) / 3, weights)[0]
    loss = loss + (of_mean - (unit[0] + unit[1] + unit[2]) / 3).square().mean()
    for i, gradient in enumerate(torch.autograd.grad(loss, weights)):  # type: ignore[arg-type]
        torch.testing.assert_close(state[f"first.{i}"], gradient / 10, rtol=1e-3, atol=1e-6)
