"""DeAR: halves of an all-reduce at two times, what they take and what they send."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings

from laconic.schedule.dear import DeAR
from laconic.schedule.wfbp import WFBP
from laconic.values.price import Price
from laconic.worker import Kind
from tests.cost.test_iteration import in_halves
from tests.schedule.chains import Chain
from tests.schedule.plans import Case, case, cases


@pytest.mark.long
@pytest.mark.technique("dear", check=1)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("word", ["dear", "dear(0)", "dear(600)"])
def test_it_trains_the_same_model_with_a_rings_bytes(word: str, workers: int) -> None:
    """Of every tensor each worker has an equal share here, so that no buffer is padded."""
    chain = Chain((12, 20, 16, 24, 4), workers)
    halved, whole = (chain.train(f"bsp / {each}", steps=5) for each in (word, "sequential"))
    for found, expected in zip(halved.results, whole.results, strict=True):
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)
    longer = chain.train(f"bsp / {word}", steps=7)
    ring = 2 * (workers - 1) / workers * 4 * sum(chain.sizes)
    for some, more in zip(halved.workers, longer.workers, strict=True):
        assert more.ledger.sent_bytes(Kind.PAYLOAD) - some.ledger.sent_bytes(Kind.PAYLOAD) == 2 * ring


@pytest.mark.technique("dear", check=1)
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
@pytest.mark.parametrize("word", ["dear", "dear(0)", "dear(200)"])
def test_padding_is_no_payload(word: str, workers: int) -> None:
    """Where workers do not divide a message, it is sent with zeros behind it. The payload is a ring's all the same; the
    zeros and, in the last message, a flag for each tensor are control bytes."""
    chain = Chain((5, 7, 3, 11, 1), workers)
    halved, whole = (chain.train(f"bsp / {each}", steps=3) for each in (word, "sequential"))
    for found, expected in zip(halved.results, whole.results, strict=True):
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)
    longer, sizes = chain.train(f"bsp / {word}", steps=5), chain.sizes
    bucket_bytes = {"dear": 25 << 20, "dear(0)": 0, "dear(200)": 200}[word]
    messages, arriving = [0], list(reversed(sizes))
    for place, n in enumerate(arriving):
        messages[-1] += n
        if 4 * messages[-1] >= bucket_bytes and place < len(arriving) - 1:
            messages.append(0)
    assert {"dear": 1, "dear(0)": 4, "dear(200)": 2}[word] == len(messages)
    messages[-1] += len(sizes)
    share = 4 * 2 * (workers - 1) / workers
    ring, padded = share * sum(sizes), share * sum(n + -n % workers for n in messages)
    for some, more in zip(halved.workers, longer.workers, strict=True):
        payload, control = (more.ledger.sent_bytes(k) - some.ledger.sent_bytes(k) for k in (Kind.PAYLOAD, Kind.CONTROL))
        assert payload == pytest.approx(2 * ring, abs=1e-5)
        assert control == pytest.approx(2 * (padded - ring), abs=1e-5)


@pytest.mark.long
@given(cases())
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("dear", check=2)
def test_the_period_is_the_closed_recursion(given: Case) -> None:
    layers, half = given.layers, [given.timing.price.halves.seconds(n) for n in given.layers.nbytes]
    assert given.seconds(DeAR(0)) == pytest.approx(in_halves(layers, half), rel=1e-9, abs=1e-12)


@pytest.mark.long
@given(cases())
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("dear", check=2)
def test_gathers_hide_behind_longer_layers(given: Case) -> None:
    """Every layer is made to take as long as the gather of the next one: only the first is waited for."""
    price, sizes = given.timing.price, [spec.numel for spec in given.specs]
    gathers = [price.halves.seconds(4 * n) for n in sizes]
    slower = [max(f, next_) for f, (_, next_) in zip(given.timing.forward, pairwise([*gathers, 0.0]), strict=True)]
    hidden = case(slower, given.timing.backward, sizes, price)
    ready = scattered = 0.0
    for seconds, gather in zip(reversed(given.timing.backward), reversed(gathers), strict=True):
        ready += seconds
        scattered = max(scattered, ready) + gather
    assert hidden.seconds(DeAR(0)) == pytest.approx(scattered + gathers[0] + sum(slower), rel=1e-9, abs=1e-12)


@pytest.mark.technique("dear", check=3)
def test_without_a_forward_pass_to_hide_behind_it_is_slower() -> None:
    """A long backward pass hides every all-reduce but the last; the gathers of all layers are then left over."""
    given = case([0.0] * 6, [1.0] * 6, [1000] * 6, Price(0.1, 1e-4))
    waitfree, halved = given.seconds(WFBP(0)), given.seconds(DeAR(0))
    assert waitfree == pytest.approx(6.0 + 0.5)
    assert halved == pytest.approx(6.0 + 0.25 + 6 * 0.25)
