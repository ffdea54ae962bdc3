"""Tasks for the tables of losses: batches by place, gradients of stacked workers, shards that differ, and a judge of
all that is held out."""

from __future__ import annotations

import hashlib
import json
import lzma
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.tasks import Task, cifar
from bench.tasks.bpe import Bpe
from bench.tasks.bytes import Bytes
from bench.tasks.cifar import Cifar, shards_by_label
from bench.tasks.draws import below, uniform
from bench.tasks.recommender import Recommender
from bench.tasks.text import Length
from bench.tasks.transformer import Shape
from examples.recommender import GROUPS
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from tests.test_examples import images

WORKERS = 3
Make = Callable[..., Task]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Make]:
    """Each task at a size that takes a blink."""
    folder = tmp_path_factory.mktemp("data")
    pictures, text = images(folder / "few.npz"), folder / "text.bpe.npz"
    draw = np.random.default_rng(0)
    tokens = {name: draw.integers(300, size=n, dtype=np.uint16) for name, n in (("training", 900), ("validation", 205))}
    np.savez(text, lengths=1 + draw.integers(4, size=300), **tokens)

    def of_images(**given: object) -> Task:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cifar, "RUNS", folder / "runs")
            return Cifar(**{"batch": 4, "workers": WORKERS, "data": pictures, "blocks": 1} | given)

    def of_clicks(**given: object) -> Task:
        sizes = {"users": 5 * GROUPS, "items": 150, "held_out": 3000}
        return Recommender(**{"batch": 40, "workers": WORKERS} | sizes | given)

    corpus = folder / "text.xz"
    raw = draw.integers(256, size=1105, dtype=np.uint8).tobytes()
    corpus.write_bytes(lzma.compress(raw))
    corpus.with_suffix(".json").write_text(
        json.dumps({"training_bytes": 900, "sha256": hashlib.sha256(raw).hexdigest()})
    )

    def of_bytes(**given: object) -> Task:
        return Bytes(**{"batch": 2, "workers": WORKERS, "data": corpus, "shape": Shape(1, 64, 20)} | given)

    def of_tokens(**given: object) -> Task:
        return Bpe(**{"batch": 2, "workers": WORKERS, "data": text, "shape": Shape(1, 64, 20)} | given)

    return {"cifar": of_images, "recommender": of_clicks, "bpe": of_tokens, "bytes": of_bytes}


every = pytest.mark.parametrize("name", ["cifar", "recommender", "bpe", "bytes"])


@every
def test_a_batch_depends_on_seed_step_and_worker_alone(name: str, small: dict[str, Make]) -> None:
    task, again = small[name](), small[name]()
    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (7, 300, 2)]
    batches = [task.batch(*place) for place in places]
    for place, batch in reversed([*zip(places, batches, strict=True)]):
        assert all(torch.equal(x, y) for x, y in zip(batch, again.batch(*place), strict=True)), "in another order"
    for batch in batches[1:]:
        assert [x.shape for x in batch] == [x.shape for x in batches[0]]
        assert not torch.equal(batch[0], batches[0][0])
    assert batches[0][-1].numel() == task.samples


def test_a_task_says_how_much_there_is_to_train_on(small: dict[str, Make], tmp_path: Path) -> None:
    assert {name: make().size for name, make in small.items()} == {
        "cifar": 40,
        "recommender": None,
        "bpe": 900,
        "bytes": 900,
    }
    np.savez(tmp_path / "text.npz", training=np.array([0, 1, 1]), lengths=np.array([1, 4]))
    assert Bpe.length(tmp_path / "text.npz") == Length(3, 9)


@every
def test_the_first_parameters_depend_on_the_seed_alone(name: str, small: dict[str, Make]) -> None:
    task = small[name]()
    first, again, other = (nn.utils.parameters_to_vector(task.build(seed).parameters()) for seed in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.dtype == torch.float32


@every
@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_of_stacked_workers_are_those_of_each(name: str, seed: int, small: dict[str, Make]) -> None:
    """One `vmap` over the workers' parameters, all different, against a plain backward pass of each."""
    task = small[name]()
    models = [task.build(10 * seed + worker) for worker in range(WORKERS)]
    batches = [task.batch(seed, 3, worker) for worker in range(WORKERS)]

    def loss(parameters: dict[str, Tensor], *batch: Tensor) -> Tensor:
        return task.loss(lambda *inputs: functional_call(models[0], parameters, inputs), *batch)

    stacked = vmap(grad(loss))(stack_module_state(models)[0], *(torch.stack(x) for x in zip(*batches, strict=True)))
    for worker, model in enumerate(models):
        task.loss(model, *batches[worker]).backward()
        for tensor, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, tensor
            torch.testing.assert_close(stacked[tensor][worker], parameter.grad, rtol=1e-4, atol=1e-6)


@every
def test_the_judge_keeps_no_graph_and_says_the_loss_first(name: str, small: dict[str, Make]) -> None:
    task = small[name]()
    model = task.build(0)
    found = task.evaluate(model)
    assert next(iter(found)) == "loss" and all(map(math.isfinite, found.values()))
    assert found == task.evaluate(lambda *inputs: functional_call(model, dict(model.named_parameters()), inputs))
    assert all(p.grad is None for p in model.parameters())


@every
@pytest.mark.long
def test_a_few_steps_learn(name: str, small: dict[str, Make]) -> None:
    task = small[name]()
    if isinstance(task, Cifar):  # noise has nothing to learn, so give each class a colour
        colours = torch.randint(256, (10, 3, 1, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        task.images = (task.images // 2) + colours[task.labels] // 2
    for seed in (0, 1):
        model = task.build(seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for step in range(30):
            loss = sum(task.loss(model, *task.batch(seed, step, worker)) for worker in range(WORKERS)) / WORKERS
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert np.mean(losses[-5:]) < 0.97 * np.mean(losses[:5])


# ------------------------------------------------------------------------------------------------ draws


def test_draws_reach_every_number_and_stay_below_the_bound() -> None:
    cpu = torch.device("cpu")
    drawn = below(7, 7000, cpu, "a", 1)
    assert drawn.bincount(minlength=7).sub(1000).abs().max() < 150 and drawn.max() == 6
    assert below(1 << 40, 100, cpu, "a").max() > 1 << 38, "more than a draw of 24 bits can say"
    even = uniform(10_000, cpu, "a", 2)
    assert even.min() >= 0 and even.max() < 1 and abs(even.mean() - 0.5) < 0.01
    assert not torch.equal(below(100, 50, cpu, 1, 23), below(100, 50, cpu, 12, 3)), "places are not run together"


# ------------------------------------------------------------------------------------------------ images


def test_images_are_decoded_once_and_all_of_the_test_set_is_judged(small: dict[str, Make], tmp_path: Path) -> None:
    task = small["cifar"]()
    assert isinstance(task, Cifar) and len(task.images) == 40 and len(task.test_images) == 10
    scores = torch.randn(10, 10)
    found = task.evaluate(lambda x: scores)
    right = (scores.argmax(1) == task.test_labels).float().mean().item()
    assert found == {"loss": functional.cross_entropy(scores, task.test_labels).item(), "accuracy": right}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar, "RUNS", tmp_path)
        before = cifar.decoded(images(tmp_path / "images.npz"))
        patch.setattr(cifar, "load_images", None)  # nobody decodes again
        assert all(torch.equal(x, y) for x, y in zip(before, cifar.decoded(tmp_path / "images.npz"), strict=True))
    with pytest.raises(SystemExit, match="set LACONIC_DATA"):
        cifar.decoded(tmp_path / "nowhere.npz")


def test_images_of_a_batch_come_from_the_workers_shard_with_their_labels(small: dict[str, Make]) -> None:
    task = small["cifar"](skewed=True, batch=200)
    assert isinstance(task, Cifar)
    task.labels = torch.arange(len(task.labels))
    for worker, shard in enumerate(task.shards):
        pictures, chosen = task.batch(0, 0, worker)
        assert set(chosen.tolist()) == set(shard.tolist()), "with 200 draws each of 13 images is among them"
        moved = {tuple(x[:, 4:-4, 4:-4].flatten().tolist()) for x in pictures}
        assert len(moved) > 150, "crops and mirror images differ"


@pytest.mark.parametrize("workers", [2, 7, 8])
def test_shards_have_one_size_share_no_image_and_differ_by_label(workers: int) -> None:
    labels = np.random.default_rng(1).integers(10, size=5000)
    shards = [shard.numpy() for shard in shards_by_label(labels, workers)]
    assert {len(shard) for shard in shards} == {5000 // workers}
    assert len(np.unique(np.concatenate(shards))) == 5000 // workers * workers
    shares = np.stack([np.bincount(labels[shard], minlength=10) for shard in shards]) / len(shards[0])
    apart = np.abs(shares - 0.1).sum(1) / 2  # 0 for equal shares, 0.9 for one label alone
    assert apart.mean() > 0.3


# ------------------------------------------------------------------------------------------------ clicks


def test_clicks_follow_the_odds_and_ids_follow_zipf(small: dict[str, Make]) -> None:
    task = small["recommender"](held_out=60_000)
    assert isinstance(task, Recommender)
    ids, visit, clicks = task.held_out
    odds = task.world.logits(ids, visit).sigmoid()
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (odds >= low) & (odds < low + 0.25)
        assert abs(clicks[inside].mean() - odds[inside].mean()) < 0.02 and inside.sum() > 1000
    for column, count in ((0, task.world.users), (1, task.world.items)):
        law = torch.arange(1, count + 1) ** -1.05
        expected = len(ids) * law / law.sum()
        met = ids[:, column].bincount(minlength=count)
        assert ((met - expected).abs() < 6 * expected.sqrt() + 1).all()
    assert torch.equal(ids[:, 2], ids[:, 0] % GROUPS) and ids[:, 3].max() == 99
    judged = task.evaluate(task.world.logits)["loss"]
    assert task.least == judged
    truth = dict(task.world.truth)
    for name in truth:  # whoever does not know one of them pays for it
        task.world.truth[name] = torch.zeros_like(truth[name])
        assert task.evaluate(task.world.logits)["loss"] > judged + 0.03
        task.world.truth[name] = truth[name]


def test_skewed_workers_meet_users_of_their_own_groups(small: dict[str, Make]) -> None:
    task, even = small["recommender"](skewed=True, batch=20_000), small["recommender"](batch=20_000)
    together = torch.zeros(5 * GROUPS)
    for worker in range(WORKERS):
        ids, _, _ = task.batch(0, 0, worker)
        assert set((ids[:, 2] % WORKERS).tolist()) == {worker} and len(ids[:, 2].unique()) == GROUPS // WORKERS
        together += ids[:, 0].bincount(minlength=len(together)) / WORKERS
    expected = even.batch(0, 0, 0)[0][:, 0].bincount(minlength=len(together))
    blocks = (x.float().view(-1, WORKERS).sum(1) for x in (together, expected))
    assert ((next(blocks) - (rest := next(blocks))).abs() < 6 * rest.sqrt() + 6).all()
    with pytest.raises(SystemExit, match="divides 48"):
        small["recommender"](skewed=True, workers=5)


# ------------------------------------------------------------------------------------------------ tokens


def test_nats_a_byte_of_a_model_that_knows_nothing(small: dict[str, Make]) -> None:
    """It has log 300 nats a token, and a token has as many bytes as its length says; 205 tokens fill ten windows."""
    task = small["bpe"]()
    assert isinstance(task, Bpe)
    found = task.evaluate(lambda x: torch.zeros(*x.shape, 300))
    held_out = task.tokens.lengths[task.tokens.validation[1:201]].sum().item()
    assert found["loss"] == pytest.approx(200 * math.log(300) / held_out, rel=1e-5)
    assert found["nats_per_token"] == pytest.approx(math.log(300), rel=1e-5)


@pytest.mark.parametrize("skewed", [False, True])
def test_an_epoch_takes_every_window_once_and_skewed_workers_stay_in_their_part(
    skewed: bool, small: dict[str, Make]
) -> None:
    """899 tokens have 44 windows of 20: 7 steps of two for each of three workers, and 14 windows for each alone."""
    task = small["bpe"](skewed=skewed)
    assert isinstance(task, Bpe)
    task.tokens = replace(task.tokens, training=torch.arange(900))
    for epoch in (0, 1):
        seen: list[int] = []
        for worker in range(WORKERS):
            own: list[int] = []
            for step in range(7):
                inputs, targets = task.batch(1, 7 * epoch + step, worker)
                assert torch.equal(inputs + 1, targets) and torch.equal(inputs[:, 1:], inputs[:, :-1] + 1)
                own += (inputs[:, 0] // 20).tolist()
            assert not skewed or sorted(own) == list(range(14 * worker, 14 * worker + 14))
            seen += own
        assert len(set(seen)) == 42
    assert not torch.equal(task.batch(1, 0, 0)[0], task.batch(1, 7, 0)[0]), "each epoch has an order of its own"


def test_a_text_that_is_too_short_or_not_there_is_refused(small: dict[str, Make]) -> None:
    with pytest.raises(SystemExit, match="it is too short"):
        small["bpe"](shape=Shape(1, 64, 250))
    with pytest.raises(SystemExit, match=r"run bench/corpus.py"):
        small["bpe"](data=Path("nowhere.npz"))
