"""`auto`: the first steps are timed and the network tried, then all workers agree on the strategy that is predicted to
be fastest; and again when steps take another time than they did.

Without a budget for loss the mathematics stays what it is: then only what is merged, in which order and how it travels
is decided (`schedule.auto`). With one, whatever was measured to stay within it takes part.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass

from laconic.cost.comm_plan import predicted_seconds
from laconic.language.auto import START
from laconic.planner.admitted import within
from laconic.runtime.layer_timer import prices_of
from laconic.runtime.session import Session
from laconic.runtime.tiers import Tier
from laconic.schedule.auto import Auto
from laconic.strategy import Sentence, Strategy
from laconic.values.price import Price
from laconic.values.timing import Timing

PAYS = 1.03
"""A speed-up below this is not worth a change: it is within what steps differ by anyway."""

_PERIODIC = "local_sgd"
_LEAST_SECONDS, _STEPS_OF_TRIALS = 3.0, 10  # compressors are tried for so long, or for as long as so many steps


@dataclass(frozen=True)
class PricedStrategy:
    """A strategy that takes part, and what a step with it is predicted to take."""

    strategy: Sentence
    seconds: float


class Autotuning:
    """Of one session whose strategy is `auto`."""

    def __init__(self, session: Session, budget: float) -> None:
        self._session, self.budget = session, budget
        self._marks: list[float] = []
        self._admitted: list[Sentence] | None = None

    def step_ended(self) -> None:
        worker = self._session.worker
        self._marks = [*self._marks[-8:], worker.clock_seconds() - worker.waited_seconds]

    def choose(self) -> None:
        """Collective: all workers have measured the same steps, and price with rank 0's numbers."""
        if not self.budget:
            return
        choices = self._priced()
        ranked = sorted(choices, key=lambda choice: choice.seconds)
        lossless, best = choices[0], ranked[0]
        if best.seconds * PAYS > lossless.seconds:
            best = lossless
        session = self._session
        if session.worker.rank == 0 and session.group.rank == 0:
            share = f"{100 * self.budget:g} % more loss"
            why = f"a step of {1e3 * best.seconds:.1f} ms is predicted, {1e3 * lossless.seconds:.1f} ms without loss"
            tried = f"{len(choices)} strategies within {share} compared"
            print(f"laconic: auto, step {session.steps}: `{best.strategy}`, {why}; {tried}", file=sys.stderr)
        if best.strategy != session.strategy:
            session.switch_strategy(best.strategy)

    def _priced(self) -> list[PricedStrategy]:
        """What needs no budget first."""
        session, comm_planner = self._session, self._session.comm_planner
        count = len(session.parameters.dense)
        forward, backward = tuple(comm_planner.forward[:count]), tuple(comm_planner.backward[:count])
        specs = session.parameters.specs
        arrival = [i for i in comm_planner.arrival if i < count]
        whole = float(sum(spec.nbytes for spec in specs))
        rest = comm_planner.agreed([max(0.0, self._iteration_seconds() - sum(forward) - sum(backward))])[0]
        computing = sum(forward) + sum(backward) + rest
        plain = Strategy.parse(START)
        assert isinstance(plain, Sentence)
        dense, halved, _ = comm_planner.prices.get(str(plain)) or self._prices(plain, whole)
        assert dense is not None
        coded: dict[str, Price | None] = {"none": None}
        found: list[PricedStrategy] = []
        begin = session.worker.clock_seconds()
        for sentence in (plain, *self._candidates()):
            chain = sentence.chain
            if chain not in coded:
                (spent,) = comm_planner.agreed([session.worker.clock_seconds() - begin])
                if spent > max(_LEAST_SECONDS, _STEPS_OF_TRIALS * (rest + dense.seconds(whole))):
                    continue
                coded[chain] = self._prices(sentence, whole)[2]
            compressed = coded[chain]
            comm_planner.prices[str(sentence)] = [dense, halved, compressed]
            if sentence.sync.name == _PERIODIC:
                seconds = computing + (compressed or dense).seconds(whole) / sentence.sync.make().period
            else:
                timing = Timing(forward, backward, dense, False, halved, compressed)
                plan = Auto(beside_forward=False).plan(specs, arrival, timing)
                seconds = rest + predicted_seconds(plan, arrival, timing)
            found.append(PricedStrategy(sentence, seconds))
        return found

    def _prices(self, sentence: Sentence, whole_bytes: float) -> list[Price | None]:
        session = self._session
        tier = Tier(sentence, session.group, worker=session.worker)
        found = prices_of(tier, session.worker, int(whole_bytes), session.parameters.device)
        agree = session.comm_planner.agreed
        return [None if p is None else Price(*agree([p.startup_seconds, p.seconds_per_byte])) for p in found]

    def _candidates(self) -> list[Sentence]:
        """What was measured to stay within the budget."""
        if self._admitted is None:
            found = map(Strategy.parse, within(self.budget, self._session.group.size))
            sentences = [sentence for sentence in found if isinstance(sentence, Sentence)]
            self._admitted = sorted(sentences, key=self._payload)  # what says least first: trials end after a while
        return self._admitted

    def _payload(self, sentence: Sentence) -> float:
        compressor, size = sentence.compressor, self._session.group.size
        specs = self._session.parameters.specs
        return sum(compressor.payload_bytes(s, size) if compressor.accepts(s) else s.nbytes for s in specs)

    def _iteration_seconds(self) -> float:
        return statistics.median(b - a for a, b in zip(self._marks, self._marks[1:], strict=False))
