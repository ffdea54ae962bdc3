"""What every compressor must keep, and what one promises that declares more: each check is one property."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laconic import claims, registry
from laconic.check.cases import DTYPES, Meeting, copied, meetings, states_of
from laconic.check.finding import DoesNotApply, Finding, look, smallest
from laconic.compression.base import REQUESTS, Compressor
from laconic.compression.error_feedback import Remembering
from laconic.compression.optional import (
    added_memories,
    conserved_of,
    contraction_of,
    memory_bytes,
    prices_of,
    refusal_of_memory,
    variance_of,
)
from laconic.testing.in_memory import meet

DRAWS = 300
DRAWN = ((3,), (17,), (9, 7))
STEPS = 6
PATIENCE = 200  # some memories are brought up to date every hundred steps


def exchanges_everything(made: Compressor) -> str | None:
    """Every tensor that it accepts is exchanged, whatever its shape, type and values; the result is like the input."""

    def judge(case: Meeting) -> str | None:
        for outcome in meet(made, case.inputs()):
            for name, tensor in (("result", outcome.result), ("sent", outcome.sent)):
                if tensor is not None and (tensor.shape != torch.Size(case.shape) or tensor.dtype != case.dtype):
                    return f"`{name}` has shape {list(tensor.shape)} and type {tensor.dtype}"
            if not bool(outcome.result.isfinite().all()):
                return "the result is not finite"
        return None

    return smallest(meetings(made, dtypes=DTYPES), judge)


def agrees(made: Compressor) -> str | None:
    """All workers end with the same bits."""

    def judge(case: Meeting) -> str | None:
        results = [outcome.result for outcome in meet(made, case.inputs())]
        other = next((rank for rank, result in enumerate(results) if not torch.equal(result, results[0])), None)
        return (
            None if other is None else f"worker 0 has {_values(results[0])}, worker {other} {_values(results[other])}"
        )

    return smallest(meetings(made), judge)


def declares_its_requests(made: Compressor) -> str | None:
    """What `exchange` yields is among what `meets` stands for, or `asks` lists."""

    def judge(case: Meeting) -> str | None:
        yielded: list[list[tuple[str, Tensor]]] = []
        meet(made, case.inputs(), payloads=yielded)
        declared = {kind.__name__ for kind in made.asks}
        wrong = next((kind for kind, _ in yielded[0] if kind not in declared), None) if yielded else None
        return None if wrong is None else f"it yields {wrong}, and declares {' and '.join(sorted(declared))}"

    return smallest(meetings(made, kinds=("normal",)), judge)


def sends_what_it_promises(made: Compressor) -> str | None:
    """The bytes that a worker hands over are `payload_bytes`, and `prices` divides them by the way they meet; where a
    length depends on the values (`ragged`), they are at most that."""

    def judge(case: Meeting) -> str | None:
        states, step = case.settled(made)
        sent: list[list[tuple[str, Tensor]]] = []
        meet(made, case.inputs(step), states, step, payloads=sent)
        promised, prices = made.payload_bytes(case.spec, case.workers), prices_of(made, case.spec, case.workers)
        if promised != sum(nbytes for _, nbytes in prices):
            return f"payload_bytes promises {promised}, prices {sum(nbytes for _, nbytes in prices)}"
        foreign = {kind for kind, _ in sent[0]} - {kind.__name__ for how, _ in prices for kind in REQUESTS[how]}
        if foreign:
            return f"prices name {' and '.join(how for how, _ in prices)}, and a {min(foreign)} is yielded"
        for rank, own in enumerate(sent):
            counted = sum(tensor.nbytes for _, tensor in own)
            if counted > promised or (counted < promised and not getattr(made, "ragged", False)):
                return f"worker {rank} hands over {counted} bytes, and {promised} are promised"
        return None

    return smallest(meetings(made), judge)


def repeats(made: Compressor) -> str | None:
    """A step depends on its input, its state and its draws alone: from a saved state it is taken again with the same
    bits."""

    def judge(case: Meeting) -> str | None:
        states, saved, before = case.begin(made), [], []
        for step in range(4):
            saved.append(copied(states))
            outcomes = meet(made, case.inputs(step), states, step)
            states = states_of(outcomes)
            before.append(outcomes[0].result)
        for step in (2, 0):
            again = meet(made, case.inputs(step), copied(saved[step]), step)[0].result
            if not torch.equal(again, before[step]):
                return f"step {step} gave {_values(before[step])}, and from its saved state {_values(again)}"
        return None

    return smallest(meetings(made, kinds=("normal",)), judge)


def keeps_its_state(made: Compressor) -> str | None:
    """The state has the entries, shapes and types of `init` after every step, and `init` needs no memory where tensors
    have none (`torch.device("meta")`)."""

    def judge(case: Meeting) -> str | None:
        states = case.begin(made)
        begun = {key: (value.shape, value.dtype) for key, value in states[0].items()}
        memory_bytes(made, [case.spec])
        for step in range(3):
            states = states_of(meet(made, case.inputs(step), states, step))
            for state in states:
                found = {key: (value.shape, value.dtype) for key, value in state.items()}
                wrong = next((key for key in begun.keys() | found.keys() if begun.get(key) != found.get(key)), None)
                if wrong is not None:
                    return f"`{wrong}` is {_kind(begun.get(wrong))} in init and {_kind(found.get(wrong))} after a step"
        missing = [key for key in conserved_of(made) if key not in begun]
        return f"`conserved` names {missing[0]}, which is not in the state" if missing else None

    return smallest(meetings(made, kinds=("normal",)), judge)


def uses_its_memory(made: Compressor) -> str | None:
    """Every entry of the state changes in the course of some steps; what never changes is a knob, not a memory."""
    case = Meeting(2, (9, 7))
    states = case.begin(made) if made.accepts(case.spec) else [{}]
    if not states[0]:
        raise DoesNotApply
    first = copied(states)[0]
    still = set(first)
    for step in range(PATIENCE):
        states = states_of(meet(made, case.inputs(step), states, step))
        still -= {key for key in still if key not in states[0] or not torch.equal(states[0][key], first[key])}
        if not still:
            break
    return f"{case}: `{min(still)}` is the same after {PATIENCE} steps" if still else None


def tells_what_it_sent(made: Compressor) -> str | None:
    """`sent` is what the others decode of a worker's message: where messages are gathered and averaged, its mean over
    workers is the result, so that error feedback remembers neither too much nor too little."""
    if made.meets != "gather" or refusal_of_memory(made) is not None:
        raise DoesNotApply

    def judge(case: Meeting) -> str | None:
        outcomes = meet(made, case.inputs())
        sent = [outcome.sent for outcome in outcomes if outcome.sent is not None]
        if len(sent) < len(outcomes):
            return None
        mean = torch.stack(sent).double().mean(0)
        off = (mean - outcomes[0].result.double()).abs().max()
        near = 1e-5 * max(float(mean.abs().max()), float(outcomes[0].result.abs().max()))
        return None if off <= near else f"the mean of sent is {_values(mean)}, the result {_values(outcomes[0].result)}"

    return smallest(meetings(made), judge)


def goes_with_error_feedback(made: Compressor) -> str | None:
    """With error feedback, what was sent and what is remembered are together all that came in."""
    if refusal_of_memory(made) is not None or conserved_of(made):
        raise DoesNotApply
    remembering = Remembering(made)

    def judge(case: Meeting) -> str | None:
        states = case.begin(remembering)
        came, applied = torch.zeros(2, case.workers, *case.shape, dtype=torch.float64)
        for step in range(STEPS):
            outcomes = meet(remembering, case.inputs(step), states, step)
            states = states_of(outcomes)
            came = came + torch.stack(case.inputs(step)).double()
            own = [o.result if o.sent is None else o.sent for o in outcomes]
            applied = applied + torch.stack(own).double()
        kept = torch.stack([state["error"] for state in states]).double()
        if made.meets == "gather":
            came, applied, kept = came.mean(0), applied.mean(0), kept.mean(0)
        lost = (came - applied - kept).abs().max()
        return None if lost <= 1e-3 * max(1e-6, float(came.abs().max())) else f"after {STEPS} steps {lost:.3g} is lost"

    return smallest(meetings(remembering, kinds=("normal", "zero")), judge)


def survives_overflow(made: Compressor) -> str | None:
    """Infinity and nan in one worker's tensor raise nothing, and leave all workers with the same bits."""

    def judge(case: Meeting) -> str | None:
        for poison in (math.inf, -math.inf, math.nan):
            inputs = case.inputs()
            inputs[0].view(-1)[-1] = poison
            results = [outcome.result.nan_to_num(nan=1.25) for outcome in meet(made, inputs)]
            if any(not torch.equal(result, results[0]) for result in results):
                return f"with {poison} in worker 0's tensor, workers end with different results"
        return None

    return smallest(meetings(made, kinds=("normal",)), judge)


def goes_on_with_fewer(made: Compressor) -> str | None:
    """When one of three workers leaves, the others go on: entries in `conserved` are handed over, of the others rank
    0's are kept."""
    case = Meeting(3, (24, 20))
    if not made.accepts(case.spec):
        raise DoesNotApply
    states = case.begin(made)
    if not states[0]:
        raise DoesNotApply
    for step in range(3):
        states = states_of(meet(made, case.inputs(step), states, step))
    first = {
        key: added_memories(made, key, [value, states[2][key]]) if key in conserved_of(made) else value
        for key, value in states[0].items()
    }
    second = {key: value if key in conserved_of(made) else states[0][key].clone() for key, value in states[1].items()}
    results = [outcome.result for outcome in meet(made, case.inputs(3)[:2], [first, second], 3)]
    return None if torch.equal(*results) else f"{case}, one of whom leaves: the two others disagree"


def is_unbiased(made: Compressor) -> str | None:
    """It declares a `variance` ω: the mean over draws is the input, and E|C(v) - v|² ≤ ω|v|²."""
    if all(variance_of(made, case.spec) is None for case in meetings(made, workers=(1,), shapes=DRAWN)):
        raise DoesNotApply

    def judge(case: Meeting) -> str | None:
        omega = variance_of(made, case.spec)
        if omega is None:
            return None
        x = case.inputs()[0]
        drawn = torch.stack([meet(made, [x], step=step)[0].result for step in range(DRAWS)]).double()
        error = (drawn - x).square().flatten(1).sum(1)
        deviation = drawn.std(0) / math.sqrt(DRAWS)
        rare = 10 * float(drawn.abs().max()) / DRAWS  # what is drawn next to never may not have been drawn
        off = (drawn.mean(0) - x).abs() - (5 * deviation + rare * (deviation < rare) + 1e-5 * x.abs())
        if bool((off > 0).any()):
            worst = int(off.argmax())
            return f"{float(x.view(-1)[worst]):.4g} becomes {float(drawn.mean(0).view(-1)[worst]):.4g} in the mean"
        bound, slack = omega * float(x.double().square().sum()), 5 * float(error.std()) / math.sqrt(DRAWS)
        if float(error.mean()) > bound * (1 + 1e-5) + slack + 1e-9:
            return f"|C(v) - v|² is {float(error.mean()):.4g} in the mean, and ω|v|² is {bound:.4g}"
        return None

    return smallest(meetings(made, workers=(1,), kinds=("normal", "heavy"), shapes=DRAWN), judge)


def contracts(made: Compressor) -> str | None:
    """It declares a `contraction` δ: E|C(v) - v|² ≤ (1 - δ)|v|²."""
    if all(contraction_of(made, case.spec) is None for case in meetings(made, workers=(1,))):
        raise DoesNotApply

    def judge(case: Meeting) -> str | None:
        delta = contraction_of(made, case.spec)
        if delta is None:
            return None
        x = case.inputs()[0]
        outcomes = [meet(made, [x], step=step)[0] for step in range(40)]
        left = [float((x - (o.result if o.sent is None else o.sent)).double().square().sum()) for o in outcomes]
        whole, slack = float(x.double().square().sum()), 5 * torch.tensor(left).std().item() / math.sqrt(len(left))
        bound = (1 - delta) * whole
        if sum(left) / len(left) <= bound * (1 + 1e-5) + slack + 1e-12:
            return None
        return f"|C(v) - v|² is {sum(left) / len(left):.4g} in the mean, and (1 - δ)|v|² is {bound:.4g}"

    return smallest(meetings(made, workers=(1,)), judge)


CHECKS: tuple[Callable[[Compressor], str | None], ...] = (
    exchanges_everything,
    agrees,
    declares_its_requests,
    sends_what_it_promises,
    repeats,
    keeps_its_state,
    uses_its_memory,
    tells_what_it_sent,
    goes_with_error_feedback,
    goes_on_with_fewer,
    survives_overflow,
    is_unbiased,
    contracts,
)


def findings(made: Compressor, promised: Sequence[object] = ()) -> list[Finding]:
    """Return what every check says of a compressor, and of the claims with which it was registered."""
    return look([*CHECKS, *filter(None, map(_of_claim, promised))], made)


def _of_claim(claim: object) -> Callable[[Compressor], str | None] | None:
    """Return the check of a claim, or None if the checks of all compressors look at it already."""

    def is_lossless(made: Compressor) -> str | None:
        """It claims `Lossless`: every worker ends with the exact mean."""

        def judge(case: Meeting) -> str | None:
            mean, result = torch.stack(case.inputs()).double().mean(0), meet(made, case.inputs())[0].result
            near = torch.allclose(result.double(), mean, rtol=1e-5, atol=1e-6)
            return None if near else f"the mean is {_values(mean)}, the result {_values(result)}"

        return smallest(meetings(made), judge)

    def has_the_payload(made: Compressor) -> str | None:
        """It claims a `Payload`: its formula is `payload_bytes`."""
        assert isinstance(claim, claims.Payload)
        formula = claim.formula

        def judge(case: Meeting) -> str | None:
            claimed, promised = formula(case.spec, made), made.payload_bytes(case.spec, case.workers)
            return None if claimed == promised else f"the formula says {claimed}, payload_bytes {promised}"

        return smallest(meetings(made, kinds=("normal",)), judge)

    def declares_a_variance(made: Compressor) -> str | None:
        """It claims to be `Unbiased`: so it declares a `variance`."""
        found = variance_of(made, Meeting(1, (24, 20)).spec)
        return "`variance` is not defined or returns None" if found is None else None

    def declares_a_contraction(made: Compressor) -> str | None:
        """It claims a `Contraction`: so it declares a `contraction`."""
        found = contraction_of(made, Meeting(1, (24, 20)).spec)
        return "`contraction` is not defined or returns None" if found is None else None

    by_claim = {
        claims.Lossless: is_lossless,
        claims.Payload: has_the_payload,
        claims.Unbiased: declares_a_variance,
        claims.Contraction: declares_a_contraction,
    }
    return by_claim.get(type(claim))


def claims_of(made: Compressor) -> tuple[object, ...]:
    """Return the claims with which a compressor's class was registered; one that was not registered has none."""
    return registry.find(made.name).claims if registry.is_registered(type(made)) else ()


def _values(tensor: Tensor) -> str:
    flat = tensor.reshape(-1)
    return f"[{', '.join(f'{float(value):.4g}' for value in flat[:4])}{', …' if len(flat) > 4 else ''}]"


def _kind(found: tuple[torch.Size, torch.dtype] | None) -> str:
    return "not there" if found is None else f"{str(found[1]).removeprefix('torch.')}{list(found[0])}"
