"""Sharded models on real processes: PyTorch's own FSDP2 beside them, small groups, compiled blocks and restarts."""

from __future__ import annotations

import copy
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import laconic
from laconic.compression.chain import chain
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Kind
from tests.cases import first_of
from tests.real.launching import START_SECONDS, Launched
from tests.real.pool import Pool, PoolRank
from tests.sharded import features
from tests.sharded.references import whole_of
from tests.sharded.training import batch, blocks, sharded, steps_of, trained

FOUR = "strided_bits(4, 128)"


def mesh_of(member: PoolRank) -> DeviceMesh:
    """A mesh of the ranks that a test uses."""
    return DeviceMesh.from_group(member.process_group, "cpu", mesh_dim_names=("shard",))


def train(member: PoolRank, model: Any, ours: bool, steps: int, loop: Callable[..., Any], **how: Any) -> list[Tensor]:
    """The whole parameters of a sharded model after training, with the sockets filled or with PyTorch's own."""
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if ours:
        model, optimizer = laconic.distribute(model, optimizer, "none", process_group=member.process_group, **how)
    loop(model, optimizer, steps, member.rank)
    return whole_of(model)


def apart(
    member: PoolRank, make: Callable[[DeviceMesh], Any], steps: int, loop: Callable[..., Any] = steps_of
) -> float:
    """The largest difference of a training with `none` in the sockets from PyTorch's own."""
    ours, native = (train(member, make(mesh_of(member)), o, steps, loop) for o in (True, False))
    start = whole_of(make(mesh_of(member)))
    assert any(not torch.equal(a, b) for a, b in zip(native, start, strict=True))
    return max(float((a - b).abs().max()) for a, b in zip(ours, native, strict=True))


def plainly(member: PoolRank, steps: int) -> float:
    return apart(member, sharded, steps)


@pytest.mark.long
@pytest.mark.parametrize(("workers", "most"), [(2, 0.0), (4, 1e-6)])
def test_sockets_with_none_are_native_fsdp2(pool: Pool, workers: int, most: float) -> None:
    assert max(pool.run(plainly, 50, workers=workers)) <= most


# ---------------------------------------------------------------------------------------------- features


def accumulating(model: Any, optimizer: Any, steps: int, rank: int) -> None:
    for step in range(steps):
        for part in range(3):  # the first stays here, the second is sent, the third is sent and added to it
            model.set_requires_gradient_sync(part > 0)
            x, y = batch(rank, 10 * part + step)
            (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def clipping(model: Any, optimizer: Any, steps: int, rank: int) -> None:
    for step in range(steps):
        x, y = batch(rank, step)
        (model(x) - y).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


def short(reduce: torch.dtype) -> Callable[[DeviceMesh], Any]:
    return lambda mesh: sharded(mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduce))


def compiled(mesh: DeviceMesh) -> Any:
    model = blocks()
    for block in list(model)[:3]:
        block.compile(backend="aot_eager")
    return features.in_blocks(model, mesh)


FEATURES: dict[str, tuple[Callable[[DeviceMesh], Any], Callable[..., Any]]] = {
    "bf16, added in float32": (short(torch.float32), steps_of),
    "bf16, added in bf16": (short(torch.bfloat16), steps_of),
    "bf16, added in fp16": (short(torch.float16), steps_of),
    "weights stay after forward": (lambda mesh: sharded(mesh, reshard_after_forward=False), steps_of),
    "accumulation both ways": (sharded, accumulating),
    "clipping": (sharded, clipping),
    "compiled blocks": (compiled, steps_of),
    **{
        name: (lambda mesh, build=build, shard=shard: shard(build(), mesh), steps_of)
        for name, (build, shard) in features.FEATURES.items()
    },
}


def with_feature(member: PoolRank, name: str) -> float:
    make, loop = FEATURES[name]
    return apart(member, make, 3, loop)


@pytest.mark.parametrize("name", first_of(FEATURES, 1))
def test_features_have_the_bits_of_native_fsdp2(pool: Pool, name: str) -> None:
    assert pool.run(with_feature, name) == [0.0, 0.0]


# ---------------------------------------------------------------------------------------------- small groups


def with_small_groups(member: PoolRank) -> tuple[float, float, float]:
    """Difference from native, and the payload bytes of the last step with weights as they are and in eight bits."""
    sent = []

    def loop(model: Any, optimizer: Any, steps: int, rank: int) -> None:
        ledger = getattr(optimizer, "session", None) and optimizer.session.worker.ledger
        steps_of(model, optimizer, steps - 1, rank)
        before = ledger.sent_bytes(Kind.PAYLOAD) if ledger else 0
        steps_of(model, optimizer, 1, rank)
        sent.append(ledger.sent_bytes(Kind.PAYLOAD) - before if ledger else 0)

    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
    make = lambda: sharded(mesh, reshard_after_forward=2)  # noqa: E731
    ours, native = (train(member, make(), o, 3, loop) for o in (True, False))
    train(member, make(), True, 3, loop, weights="int8(256)")
    return max(float((a - b).abs().max()) for a, b in zip(ours, native, strict=True)), sent[0], sent[2]


def test_small_groups_gather_densely_inside_and_coded_across(pool: Pool) -> None:
    """With `reshard_after_forward=2`, backward gathers halves from one's neighbour; only forward crosses."""
    found = pool.run(with_small_groups, workers=4)
    assert max(difference for difference, _, _ in found) <= 1e-6
    padded = [[-(-p.shape[0] // 4) * p[0].numel() for p in m.parameters()] for m in (*list(blocks())[:3], blocks()[3])]
    shards = [sum(sizes) for sizes in padded]  # values of a shard of each module
    sentence = Strategy.parse("int8(256)")
    assert isinstance(sentence, Sentence)
    codec: Any = chain([word.make() for word in sentence.compression])
    across = sum(3 * codec.payload_bytes(TensorSpec("", (n,), torch.float32), 4) for n in shards)
    for _, dense, coded in found:
        assert dense - coded == 3 * 4 * sum(shards) - across
        inside = coded - across - 3 * 4 * sum(shards)  # gradients go to their owners as they are
        assert inside == 4 * 2 * sum(shards)  # one half, which its neighbour has not


def coded(member: PoolRank) -> tuple[Any, Any]:
    model: Any = sharded(mesh_of(member))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    how = {"weights": "int8(256)", "process_group": member.process_group}
    return laconic.distribute(model, optimizer, "int8(64)+ef", **how)


def coded_and_compiled(member: PoolRank, what: str) -> list[float]:
    model, optimizer = coded(member)
    if what == "blocks":
        for block in list(model)[:3]:
            block.compile(backend="aot_eager")
    run = torch.compile(model, backend="aot_eager") if what == "the model" else model
    return steps_of(run, optimizer, 3, member.rank)


@pytest.mark.parametrize("what", first_of(["the model", "blocks"], 1))
def test_what_is_compiled_sends_the_same_codes(pool: Pool, what: str) -> None:
    assert pool.run(coded_and_compiled, what) == pool.run(coded_and_compiled, "nothing")


def back_and_forth(member: PoolRank) -> bool:
    """Whether PyTorch's own state dict of what `distribute` returned leads back to where it was taken."""
    model, optimizer = coded(member)
    steps_of(model, optimizer, 2, member.rank)
    states = copy.deepcopy(get_state_dict(model, optimizer))
    before = whole_of(model)
    steps_of(model, optimizer, 2, member.rank)
    changed = not all(torch.equal(a, b) for a, b in zip(whole_of(model), before, strict=True))
    set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1])
    moments = [state["exp_avg"].to_local() for state in optimizer.state.values()]
    return (
        changed
        and all(torch.equal(a, b) for a, b in zip(whole_of(model), before, strict=True))
        and all(moment.any() for moment in moments if moment.numel())
    )


def test_pytorchs_state_dict_of_a_distributed_model_is_read_back(pool: Pool) -> None:
    assert all(pool.run(back_and_forth))


# ---------------------------------------------------------------------------------------------- both engines


def on_processes(member: PoolRank, strategy: str, weights: str | None) -> tuple[list[float], list[Tensor], float]:
    mesh = mesh_of(member)
    model: Any = sharded(mesh)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    where = {"process_group": member.process_group, "weights": weights}
    model, optimizer = laconic.distribute(model, optimizer, strategy, **where)
    ledger = optimizer.session.worker.ledger
    before = ledger.sent_bytes(Kind.PAYLOAD)
    losses = steps_of(model, optimizer, 6, member.rank)
    return losses, whole_of(model), ledger.sent_bytes(Kind.PAYLOAD) - before


@pytest.mark.parametrize(("strategy", "weights"), [(f"{FOUR}+loco", "int8(256)"), ("sdp4bit", None)])
def test_two_virtual_workers_have_the_bits_of_two_processes(pool: Pool, strategy: str, weights: str | None) -> None:
    virtual = laconic.simulate(lambda: trained(strategy, weights=weights), 2).results
    for ours, theirs in zip(pool.run(on_processes, strategy, weights), virtual, strict=True):
        assert ours[0] == theirs[0] and ours[2] == theirs[2]
        assert all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))


# ---------------------------------------------------------------------------------------------- replicas


def hooks_on_a_native_mesh(member: PoolRank) -> list[float]:
    """The difference of hooks from PyTorch's own: where it averages replicas, and where this library does."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    found: list[list[Tensor]] = []
    for replicas in ("native", None, "none"):
        model = sharded(mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if replicas != "native":
            laconic.fsdp_hooks(model, "none", replicas=replicas, mesh=mesh)
        steps_of(model, optimizer, 3, member.rank)
        found.append(whole_of(model))
    return [max(float((a - b).abs().max()) for a, b in zip(f, found[0], strict=True)) for f in found[1:]]


def test_hooks_leave_replicas_to_pytorch_or_average_them(pool: Pool) -> None:
    for differences in pool.run(hooks_on_a_native_mesh, workers=4):
        assert max(differences) <= 1e-6


def distributed_on_a_native_mesh(member: PoolRank, strategy: str) -> float:
    """The difference from PyTorch's own HSDP, of a script that says nothing of replicas."""
    found = []
    for ours in (False, True):
        model: Any = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard")))
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if ours:
            model, optimizer = laconic.distribute(model, optimizer, strategy)
        steps_of(model, optimizer, 3, member.rank)
        found.append(whole_of(model))
    return max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))


def test_replicas_of_which_nothing_is_said_are_native_hsdp(pool: Pool) -> None:
    assert max(pool.run(distributed_on_a_native_mesh, "none", workers=4)) <= 1e-6


def between_replicas(mesh: Any, rank: int) -> list[float]:
    """Train two replicas of two shards for several periods and a part of one."""
    model: Any = sharded(mesh["shard"])
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = laconic.distribute(model, optimizer, f"[{FOUR}+loco]@shard > [diloco(3)]@replica", mesh)
    return steps_of(model, optimizer, 8, rank)


def between_replicas_of_processes(member: PoolRank) -> list[float]:
    return between_replicas(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard")), member.rank)


@pytest.mark.long
def test_diloco_between_replicas_of_shards_has_the_same_bits_on_processes(pool: Pool) -> None:
    def virtual() -> list[float]:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        return between_replicas(mesh, laconic.rank())

    assert pool.run(between_replicas_of_processes, workers=4) == laconic.simulate(virtual, 4).results


# ---------------------------------------------------------------------------------------------- checkpoints


def saving(member: PoolRank, folder: Path) -> list[Tensor]:
    model: Any = sharded(mesh_of(member))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = laconic.distribute(model, optimizer, f"{FOUR}+ef", process_group=member.process_group)
    steps_of(model, optimizer, 2, member.rank)
    laconic.checkpoint(folder, model, optimizer)
    return whole_of(model)


def reading(member: PoolRank, folder: Path) -> tuple[list[Tensor], list[Tensor], int]:
    """The parameters that `resume` gives, and those that PyTorch's own reader does."""
    model: Any = sharded(mesh_of(member), seed=1)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weights, moments = get_state_dict(model, optimizer)
    state = {"training": {"model": weights, "optimizer": moments}}
    where = folder / (folder / "latest").read_text() / "sharded"
    dcp.load(state, checkpoint_id=where, process_group=member.process_group)
    theirs = [copy.deepcopy(weight.full_tensor()) for weight in state["training"]["model"].values()]
    model, optimizer = laconic.distribute(model, optimizer, f"{FOUR}+ef", process_group=member.process_group)
    laconic.resume(folder, model, optimizer)
    steps = optimizer.session.steps
    found = whole_of(model)
    steps_of(model, optimizer, 2, member.rank)
    return found, theirs, steps


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_a_checkpoint_is_read_on_other_processes_and_by_pytorch(
    pool: Pool, tmp_path: Path, before: int, after: int
) -> None:
    saved = pool.run(saving, tmp_path, workers=before)[0]
    for found, theirs, steps in pool.run(reading, tmp_path, workers=after):
        assert steps == 2
        for a, b, c in zip(found, theirs, saved, strict=True):
            assert torch.equal(a, c) and torch.equal(b, c)


@pytest.mark.long
def test_a_killed_run_goes_on_with_half_as_many_workers(launch: Callable[..., Launched], tmp_path: Path) -> None:
    """Four ranks save their shards; after a SIGKILL two of them read all, and the loss goes on falling."""
    script = Path(__file__).parent / "scripts" / "sharded.py"
    saved = ("--checkpoint", str(tmp_path / "saved"))
    run = launch("--workers", "4", "--", *saved, "--steps", "1000000", name="four", script=script)
    run.until(lambda: all("\nstep 9\n" in run.log(rank) for rank in range(4)), 3 * START_SECONDS)  # it imports much
    os.kill(run.pid(2), signal.SIGKILL)
    assert run.exit_code(START_SECONDS) == 128 + signal.SIGKILL
    again = launch("--workers", "2", "--", *saved, "--steps", "30", name="two", script=script)
    assert again.exit_code(3 * START_SECONDS) == 0, again.console + again.log(0)
    begins = int(next(line.split()[-1] for line in again.log(0).splitlines() if line.startswith("begins at")))
    assert 8 <= begins < 30
    losses = [[float(x) for x in re.findall(r"^loss (\S+)", r.log(0), re.MULTILINE)] for r in (run, again)]
    assert losses[1][0] < 0.9 * losses[0][0] and losses[1][-1] < losses[1][0]
