"""Calls of hot loops that plain torch computes, since no faster body takes the tensors, are counted by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import pytest
import torch

from laconic import kernels
from laconic.kernels import blocks, codes, messages, reference, sparse_messages
from laconic.kernels.fallbacks import counted_within, counting
from tests.kernels.on import gpu, tensor

HOMES = (messages, codes, blocks, sparse_messages)


def test_what_triton_computes_is_not_counted_and_what_it_hands_on_is_counted_once() -> None:
    xs, calls = [tensor("normal", 600), tensor("normal", 90)], Counter[str]()
    with counting(calls):
        gpu.encode_levels(xs, None, 512, 7, "l2", [1, 2])
        assert not calls
        gpu.encode_levels(xs, None, 500, 7, "l2", [1, 2])  # buckets of another length than a power of two
        gpu.pack_signs(xs[0].double())
    assert calls == {"encode_levels": 1, "pack_signs": 1}, "the loops inside the first are a part of it"
    gpu.encode_levels(xs, None, 500, 7, "l2", [1, 2])
    assert calls.total() == 2, "nobody counts any more"


@pytest.mark.parametrize("name", sorted(set(reference.__all__) - set(gpu.__all__) - {"in_buckets"}))
def test_a_loop_without_a_body_for_gpus_is_counted(name: str) -> None:
    assert hasattr(getattr(reference, name), "__wrapped__")


def test_every_loop_over_lists_is_counted_where_plain_torch_computes_it() -> None:
    composed = {name: home for name in kernels.__all__ for home in HOMES if hasattr(home, name)}
    del composed["norms"], composed["BlockFormat"]  # a loop over one tensor and a root, and no loop
    assert {"encode_levels", "mean_of_blocks", "encode_columns", "average_places"} <= composed.keys()
    assert [name for name, home in composed.items() if not hasattr(getattr(home, name), "__wrapped__")] == []


def test_communications_that_take_turns_count_for_themselves() -> None:
    def computing(times: int) -> Generator[str, int, int]:
        answer = 0
        for _ in range(times):
            reference.vote(torch.zeros(3, 2, dtype=torch.uint8))
            answer = yield "message"
        return answer

    first, second = Counter[str](), Counter[str]()
    one, other = counted_within(computing(3), first), counted_within(computing(1), second)
    assert [one.send(None), other.send(None), one.send(1), one.send(2)] == ["message"] * 4  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as end:
        one.send(3)
    assert end.value.value == 3
    reference.vote(torch.zeros(3, 2, dtype=torch.uint8))
    assert (first, second) == ({"vote": 3}, {"vote": 1})
