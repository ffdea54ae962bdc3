"""Plans: every element once, whatever the tensors; merging as PyTorch's own reducer does it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from laconic import claims, registry
from laconic.errors import LaconicError
from laconic.schedule.sequential import Sequential
from laconic.schedule.wfbp import WFBP
from laconic.strategy import Word
from laconic.values.comm_plan import CommPlan, Message, whole
from laconic.values.tensor_spec import TensorSpec

SCHEDULES = [e.name for e in registry.entries("schedule") if any(isinstance(c, claims.CoversOnce) for c in e.claims)]
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
SPECS = st.lists(
    st.builds(
        TensorSpec,
        st.just("x"),
        st.lists(st.integers(1, 40), max_size=3).map(tuple),
        st.sampled_from(DTYPES),
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULES)
@given(specs=SPECS, data=st.data())
def test_a_plan_covers_every_tensor_once(name: str, specs: list[TensorSpec], data: st.DataObject) -> None:
    arrival = data.draw(st.permutations(range(len(specs))))
    plan = Word(name).make().plan(specs, arrival)
    assert sorted(i for bucket in plan.buckets for i in bucket) == list(range(len(specs)))
    assert sum(plan.message_bytes) == sum(s.nbytes for s in specs)


@pytest.mark.long
@given(specs=SPECS, cap=st.integers(0, 4000), first=st.integers(0, 4000))
def test_merging_closes_at_the_cap(specs: list[TensorSpec], cap: int, first: int) -> None:
    plan = WFBP(cap, first).plan(specs, range(len(specs)))
    opened: set[torch.dtype] = set()
    for bucket in plan.buckets:
        sizes, dtype = [specs[i].nbytes for i in bucket], specs[bucket[0]].dtype
        limit = cap if dtype in opened else min(first, cap)
        opened.add(dtype)
        assert sum(sizes[:-1]) < limit or len(sizes) == 1
        assert list(bucket) == sorted(bucket), "tensors keep their order of arrival"


def test_a_wrong_plan_cannot_exist() -> None:
    a, b = TensorSpec("a", (2,), torch.float32), TensorSpec("b", (2,), torch.float64)
    for buckets in [((0,),), ((0, 1, 1),), ((0, 1),)]:
        with pytest.raises(LaconicError):
            CommPlan((a, b), buckets, whole(buckets, (a, b), (1, 0)))
    apart = ((0,), (1,))
    for ranges in [[(0, 2)], [(0, 1), (0, 2)], [(0, 2), (0, 1)], [(0, 3), (0, 2)], [(0, 2), (0, 2), (1, 2)]]:
        with pytest.raises(LaconicError):
            CommPlan((a, b), apart, tuple(Message(k % 2, *r) for k, r in enumerate(ranges)))
    messages = (Message(0, 1, 2), Message(1, 0, 2, after=(0,)), Message(0, 0, 1))
    assert CommPlan((a, b), apart, messages).message_bytes == (4, 16, 4)
    for wrong in [{"credit_bytes": -1}, {"plain": frozenset([2])}, {"postponed": (7,)}]:
        with pytest.raises(LaconicError):
            CommPlan((a, b), apart, messages, **wrong)  # type: ignore[arg-type]


def resnet_like() -> nn.Module:
    blocks: list[nn.Module] = [nn.Conv2d(3, 64, 7), nn.BatchNorm2d(64)]
    for width in (64, 128, 256, 512):
        for _ in range(2):
            blocks += [nn.Conv2d(width, width, 3, bias=False), nn.BatchNorm2d(width)] * 2
    return nn.Sequential(*blocks, nn.Linear(512, 1000))


def vgg_like() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.Conv2d(64, 512, 3), nn.Linear(4096, 2048), nn.Linear(2048, 1024), nn.Linear(1024, 10)
    )


def transformer_like() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return nn.Sequential(nn.Embedding(8000, 256), nn.TransformerEncoder(layer, 4), nn.Linear(256, 8000))


@pytest.mark.technique("pytorch_ddp", check=2)
@pytest.mark.parametrize("build", [resnet_like, vgg_like, transformer_like])
def test_buckets_are_those_of_torchs_own_reducer(build: object) -> None:
    parameters = list(build().parameters())  # type: ignore[operator]
    arrival = list(reversed(range(len(parameters))))
    specs = [TensorSpec(str(i), tuple(p.shape), p.dtype) for i, p in enumerate(parameters)]
    theirs, _ = dist._compute_bucket_assignment_by_size(
        [parameters[i] for i in arrival], [2**20, 25 * 2**20], [False] * len(parameters), arrival
    )
    ours = Word("wfbp").make().plan(specs, arrival)
    assert [list(bucket) for bucket in ours.buckets] == [list(bucket) for bucket in theirs]
    assert len(ours.messages) > 1


@pytest.mark.long
@pytest.mark.technique("wfbp_a2a", check=3)
@given(spec=SPECS.map(lambda specs: specs[0]))
def test_one_tensor_leaves_nothing_to_schedule(spec: TensorSpec) -> None:
    alone, fused = WFBP(0).plan([spec], [0]), Sequential().plan([spec], [0])
    assert alone.buckets == fused.buckets == ((0,),)
    assert len(alone.messages) == len(fused.messages) == 1


def test_compressed_gradients_share_larger_messages_unless_a_size_was_named() -> None:
    """Twenty tensors of 8 MiB: messages of 25 MiB hold four of them, and of 64 MiB eight; the first is small."""
    specs = [TensorSpec(str(i), (2**21,), torch.float32) for i in range(20)]

    def lengths(schedule: WFBP) -> list[int]:
        return [len(bucket) for bucket in schedule.plan(specs, range(20)).buckets]

    assert lengths(WFBP()) == [1, 4, 4, 4, 4, 3]
    assert lengths(WFBP().for_compressed()) == [1, 8, 8, 3]
    assert WFBP(2**23).for_compressed() == WFBP(2**23)
    assert lengths(WFBP(2**23).for_compressed()) == [1] * 20
