"""What every compressor promises, tried on every registered one; later ones inherit these by being registered."""

from __future__ import annotations

import math

import pytest
import torch

from laconic import claims, registry
from laconic.compression.base import Compressor
from laconic.compression.error_feedback import Remembering
from laconic.compression.optional import (
    conserved_of,
    contraction_of,
    prices_of,
    refusal_of_memory,
    settling_of,
    variance_of,
)
from laconic.language.word import Word
from laconic.strategy import Sentence, Strategy
from tests.compression.table import KINDS, compressor, meet, spec_of, tensor

WIRE = {"reduce": 1.0, "gather": 1.0, "scatter": 1.0, "broadcast": 1.0, "merge": 1.0}


def words() -> list[str]:
    """Every compressor that speaks to all, with its defaults and with each of its choices."""
    found = []
    for entry in registry.entries("compression"):
        if entry.kind == "word" and not entry.target.wraps and entry.target().meets != "edge":  # type: ignore
            found.append(entry.name)
            for knob in registry.knobs(entry.target):  # type: ignore[arg-type]
                choices = knob.bounds.choices or ((True, False) if isinstance(knob.default, bool) else ())
                found += [str(Word.of(entry.name, **{knob.name: choice})) for choice in choices]
    chains = ["topk(0.1)+qsgd", "topk(0.1)+fp16", "int8+two_hop", "fp8+two_hop", "bf16+two_hop", "qsgd+two_hop"]
    chains += ["int4+hadamard", "strided_bits(4, 128)+hadamard"]
    return list(dict.fromkeys([*found, *chains]))


def remembers(name: str) -> bool:
    parsed = Strategy.parse(name)
    return isinstance(parsed, Sentence) and isinstance(compressor(name), Remembering)


def with_memory() -> list[str]:
    """Those that error feedback may wrap, and the named sentences that do."""
    can = [f"{word}+ef" for word in words() if word != "none" and refusal_of_memory(compressor(word)) is None]
    named = [e.name for e in registry.entries("compression") if e.kind == "sentence" and remembers(e.name)]
    learning = (
        "lgc(ratio=0.1, dense=8, learn=12, width=4)+ef"  # what the codes of its last phase blur is not remembered
    )
    return [*can, "one_bit+two_hop(memory=true)+ef", learning, *named]


@pytest.mark.parametrize("word", words())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", [(3,), pytest.param((1, 2), marks=pytest.mark.long)], ids=str)
def test_shapes_types_and_agreement(word: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    """Everybody ends with the same tensor, like the one it brought; twice the same in, twice the same out."""
    made = compressor(word)
    for kind in KINDS:
        for size in sizes:
            inputs = [tensor(kind, seed=rank, dtype=dtype) for rank in range(size)]
            if not made.accepts(spec_of(inputs[0])):
                continue
            first, again = meet(made, inputs), meet(made, inputs)
            for outcome, other in zip(first, again, strict=True):
                assert outcome.result.shape == inputs[0].shape and outcome.result.dtype == dtype
                assert torch.equal(outcome.result, first[0].result), f"{kind}: workers disagree"
                assert torch.equal(outcome.result, other.result), f"{kind}: not deterministic"
                if outcome.sent is not None:
                    assert outcome.sent.shape == inputs[0].shape and outcome.sent.dtype == dtype


@pytest.mark.parametrize("word", words())
def test_payload_is_what_is_declared(word: str) -> None:
    """Counted in what is handed over, for all kinds of input; where it depends on the values, at most that."""
    made = compressor(word)
    for kind in KINDS:
        for size in (1, 3):
            inputs = [tensor(kind, seed=rank) for rank in range(size)]
            spec = spec_of(inputs[0])
            if not made.accepts(spec):
                continue
            handed: list[list[tuple[str, torch.Tensor]]] = []
            states = [made.init(spec) for _ in inputs]
            for step in range(settling_of(made)):
                states = [outcome.state for outcome in meet(made, inputs, states, step)]
            meet(made, inputs, states, settling_of(made), payloads=handed)
            declared = made.payload_bytes(spec, size)
            assert declared == sum(nbytes for _, nbytes in prices_of(made, spec, size))
            for said in handed:
                counted = sum(x.nbytes for _, x in said)
                assert counted <= declared if getattr(made, "ragged", False) else counted == declared, (kind, size)


@pytest.mark.parametrize(
    "word", [w for w in words() if variance_of(compressor(w), spec_of(tensor("normal"))) is not None]
)
@pytest.mark.parametrize(
    ("kind", "draws"),
    [("heavy", 150), *(pytest.param(kind, 1000, marks=pytest.mark.long) for kind in ("normal", "heavy", "sparse"))],
)
def test_unbiased_with_the_declared_variance(word: str, kind: str, draws: int) -> None:
    made, x = compressor(word), tensor(kind, (6, 5))
    omega = variance_of(made, spec_of(x))
    assert omega is not None
    drawn = torch.stack([meet(made, [x], step=step)[0].result for step in range(draws)]).double()
    error = (drawn - x).square().flatten(1).sum(1)
    deviation = drawn.std(0) / math.sqrt(len(drawn))
    rare = 10 * float(drawn.abs().max()) / len(drawn)  # what is drawn next to never may not have been drawn
    assert bool(((drawn.mean(0) - x).abs() <= 4.5 * deviation + rare * (deviation < rare) + 1e-6 * x.abs()).all())
    slack = 4 * float(error.std()) / math.sqrt(len(drawn))
    assert float(error.mean()) <= omega * float(x.double().square().sum()) * (1 + 1e-5) + slack + 1e-9


@pytest.mark.parametrize(
    "word", [w for w in words() if contraction_of(compressor(w), spec_of(tensor("normal"))) is not None]
)
@pytest.mark.parametrize("draws", [20, pytest.param(60, marks=pytest.mark.long)])
def test_contraction_with_the_declared_delta(word: str, draws: int) -> None:
    made = compressor(word)
    first, second = (meet(made, [tensor("normal")], step=step)[0].result for step in range(2))
    varies = not torch.equal(first, second)  # what draws nothing is the same in every step
    for kind in KINDS:
        x = tensor(kind)
        delta = contraction_of(made, spec_of(x))
        if delta is None or not made.accepts(spec_of(x)):
            continue
        drawn = [meet(made, [x], step=step)[0] for step in range(draws if varies else 2)]
        left = [float((x - (o.result if o.sent is None else o.sent)).double().square().sum()) for o in drawn]
        slack = 4 * torch.tensor(left).std().item() / math.sqrt(len(left))
        whole = float(x.double().square().sum())
        assert sum(left) / len(left) <= (1 - delta) * whole * (1 + 1e-5) + slack + 1e-12, kind


ROUNDED_AGAIN = {  # what is lost of a mean, as a share of its norm, where it is rounded on its way and nobody remembers
    "cast_bf16+ef": 2**-7,  # every partial sum
    "cast_bf16(stochastic)+ef": 2**-7,
    "cast_fp16+ef": 2**-10,
    "bf16+two_hop+ef": 2**-8,  # the owner's message
    "int8+two_hop+ef": 0.02,
    "fp8+two_hop+ef": 2**-3,
    "qsgd+two_hop+ef": 2.0,
}


@pytest.mark.parametrize("text", with_memory())
@pytest.mark.parametrize(
    ("kinds", "steps"),
    [(("normal",), 12), pytest.param(("normal", "zero", "heavy", "sparse"), 20, marks=pytest.mark.long)],
    ids=str,
)
@pytest.mark.technique("error_feedback", check=1)
def test_what_was_received_and_the_memories_are_what_came_in(text: str, kinds: tuple[str, ...], steps: int) -> None:
    """The telescoping identity holds over many steps for what every worker decodes, in the mean over workers, however
    their messages meet; where a mean is rounded once more on its way, up to that rounding."""
    made = compressor(text)
    assert isinstance(made, Remembering)
    rate, size, again = 0.1 if made.how.inside else 1.0, 3, ROUNDED_AGAIN.get(text, 0.0)
    for kind in kinds:
        x = tensor(kind)
        if not made.accepts(spec_of(x)):
            continue
        states = [made.init(spec_of(x)) for _ in range(size)]
        received, came = torch.zeros(2, *x.shape, dtype=torch.float64)
        for step in range(steps):
            inputs = [tensor(kind, seed=31 * step + rank) for rank in range(size)]
            outcomes = meet(made, inputs, states, step, rate)
            states = [outcome.state for outcome in outcomes]
            decoded = rate * outcomes[0].result.double()
            if again:
                sent = torch.stack([o.sent for o in outcomes if o.sent is not None]).double().mean(0)
                assert float((decoded - sent).norm()) <= again * float(sent.norm()), (kind, step)
                decoded = sent
            received += decoded
            came += rate * torch.stack(inputs).double().mean(0)
        kept = torch.stack([state["error"] for state in states]).double().mean(0)
        kept += sum((s["inner.owner"].double() for s in states if "inner.owner" in s), torch.zeros(x.shape))
        largest = max(1e-6, float(came.abs().max()), float(kept.abs().max()))
        assert float((received + kept - came).abs().max()) <= 1e-5 * largest, kind


@pytest.mark.parametrize("text", ["qsgd+two_hop+ef", "qsgd+two_hop(memory=true)+ef", "qsgd+two_hop(memory=true)"])
def test_memories_around_two_hops_of_high_variance_do_not_grow(text: str) -> None:
    """ω is about 3 here: at full strength the memory of the first was 10,000 times the input after 180 steps."""
    made, x = compressor(text), tensor("normal")
    states, largest = [made.init(spec_of(x)) for _ in range(3)], 0.0
    for step in range(120):
        inputs = [tensor("normal", seed=31 * step + rank) for rank in range(3)]
        states = [outcome.state for outcome in meet(made, inputs, states, step)]
        largest = max(largest, *(float(value.norm()) for state in states for value in state.values()))
    assert largest < 60 * float(x.norm())


@pytest.mark.parametrize("word", words())
def test_what_is_not_finite_does_not_make_sense_of_itself(word: str) -> None:
    """Infinity and nan are seen by all, or are cut as the word says; nobody fails, and workers agree."""
    made = compressor(word)
    for poison in (math.inf, -math.inf, math.nan):
        x = tensor("normal")
        x[3, 4] = poison
        if not made.accepts(spec_of(x)):
            continue
        outcomes = meet(made, [x, tensor("normal", seed=1)])
        bits = [o.result.contiguous().view(torch.int32) for o in outcomes]
        assert torch.equal(bits[0], bits[1])


@pytest.mark.parametrize("text", with_memory())
def test_a_memory_is_as_large_as_what_it_remembers(text: str) -> None:
    """Beside what the compressor keeps by itself."""
    made = compressor(text)
    assert isinstance(made, Remembering)
    x = tensor("normal", (40, 30))
    if not made.accepts(spec_of(x)):
        return

    def kept(made: Compressor) -> int:
        states, most = [made.init(spec_of(x)) for _ in range(2)], 0
        for step in range(4):
            states = [outcome.state for outcome in meet(made, [x, -x], states, step)]
            most = max(most, sum(value.nbytes for value in states[0].values()))
        return most

    assert kept(made) <= x.nbytes + kept(made.inner) + 64


@pytest.mark.parametrize("text", with_memory())
def test_an_overflow_is_not_remembered(text: str) -> None:
    made, x = compressor(text), tensor("normal")
    if not made.accepts(spec_of(x)):
        pytest.skip("too small for it")
    x[3, 4] = math.inf
    (outcome,) = meet(made, [x])
    assert all(bool(value.isfinite().all()) for key, value in outcome.state.items() if key == "error")


def test_memory_around_high_variance_is_scaled_down() -> None:
    """Full-strength memory around an unbiased compressor with ω > 1 diverges: here it does not, and is seen to."""
    made = compressor("qsgd(levels=1, bucket=512)+ef")
    x = tensor("normal", (1, 480))
    state, bare = [made.init(spec_of(x))], torch.zeros_like(x)
    sizes, growing = [], []
    inner = compressor("qsgd(levels=1, bucket=512)")
    for step in range(60):
        (outcome,) = meet(made, [x], state, step)
        state = [outcome.state]
        sizes.append(float(outcome.state["error"].norm()))
        (raw,) = meet(inner, [x + bare], step=step)
        bare = x + bare - raw.result
        growing.append(float(bare.norm()))
    assert max(sizes) < 60 * float(x.norm()) and growing[-1] > 1e3 * sizes[-1]


@pytest.mark.parametrize("text", ["randk+ef", "sign_sgd+ef", "intsgd+ef"])
def test_memory_where_it_would_diverge_is_refused(text: str) -> None:
    with pytest.raises(laconic_error(), match="write"):
        Strategy.parse(text)


def laconic_error() -> type[Exception]:
    from laconic.errors import StrategyError

    return StrategyError


@pytest.mark.parametrize("text", ["sign_sgd / ps", "scalecom / ps", "gtopk / ps", "int8+two_hop / ps"])
def test_what_an_architecture_cannot_carry_is_refused(text: str) -> None:
    with pytest.raises(laconic_error(), match="cannot carry out"):
        Strategy.parse(text)


def test_claims_are_declared() -> None:
    for entry in registry.entries("compression"):
        if entry.kind == "word" and not entry.target.wraps:  # type: ignore[union-attr]
            made = entry.target()  # type: ignore[operator]
            assert isinstance(made, Compressor) and isinstance(Sentence.of(Word(entry.name)), Sentence)
            unbiased = any(isinstance(c, claims.Unbiased) for c in entry.claims)
            assert (
                not unbiased
                or variance_of(made, spec_of(tensor("normal"))) is not None
                or entry.name == "suresh_rotated"
            )


@pytest.mark.parametrize(
    "text", ["topk(0.05)+ef", "scaled_sign+ef", "one_bit+two_hop(memory=true)+ef", "dgc(ratio=0.05)"]
)
def test_memory_goes_on_among_fewer_workers(text: str) -> None:
    """Three workers become two, one of which takes over two memories: nothing that was not said is forgotten."""
    made, size = compressor(text), 3
    states = [made.init(spec_of(tensor("heavy"))) for _ in range(size)]
    for step in range(5):
        outcomes = meet(made, [tensor("heavy", seed=10 * step + r) for r in range(size)], states, step)
        states = [outcome.state for outcome in outcomes]
    first = {k: v + states[2][k] if k in conserved_of(made) else v for k, v in states[0].items()}
    taken_over = [{k: v.clone() for k, v in state.items()} for state in (first, states[1])]

    def remembered(states: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        """In units of the mean: what workers keep counts half each, what owners keep counts whole."""
        own = [s["sum" if text.startswith("dgc") else "error"].double() / 2 for s in states]
        return sum(own, torch.zeros(())) + sum((s["inner.owner"].double() for s in states if "inner.owner" in s), 0.0)

    velocities = [s["velocity"].double() for s in taken_over if "velocity" in s]
    assert not any(v.isnan().any() for v in velocities)
    before, inputs = remembered(taken_over), [tensor("heavy", seed=90 + r) for r in range(2)]
    outcomes = meet(made, inputs, taken_over, 5)
    after = remembered([outcome.state for outcome in outcomes])
    came = torch.stack(inputs).double().mean(0)
    torch.testing.assert_close(outcomes[0].result.double() + after, came + before, rtol=1e-4, atol=1e-3)
