"""`auto`: the first steps and the network are timed, then all workers agree on the strategy that is predicted to be
fastest, and choose again when the time of a step changes.

Without a loss budget the mathematics stays unchanged: only merging, order and transport of messages are chosen
(`schedule.auto`). With a budget, every strategy is a candidate whose loss was measured to stay within it in trainings
of the same kind of model, with the same optimizer and number of workers.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass

from laconic.cost.comm_plan import predicted_seconds
from laconic.language.auto import START
from laconic.planner.loss_budget import strategies_within
from laconic.planner.risk import Training
from laconic.runtime.layer_timer import prices_of
from laconic.runtime.session import Session
from laconic.runtime.tiers import Tier
from laconic.schedule.auto import Auto
from laconic.strategy import Sentence, Strategy
from laconic.values.model_kind import model_kind
from laconic.values.price import Price
from laconic.values.timing import Timing

PAYS = 1.03
"""The least speed-up that is worth a change of strategy: smaller ones are within the noise of step times."""

_LEAST_SECONDS, _STEPS_OF_TRIALS = (
    3.0,
    10,
)  # compressors are timed for at most so long, or for the time of so many steps


@dataclass(frozen=True)
class PricedStrategy:
    """A candidate strategy and the predicted seconds of a step with it."""

    strategy: Sentence
    seconds: float


class Autotuning:
    """The autotuner of one session whose strategy is `auto`: it times steps and chooses within a loss budget."""

    def __init__(self, session: Session, budget: float) -> None:
        self._session, self.budget = session, budget
        self._marks: list[float] = []
        self._admitted: list[Sentence] | None = None

    def step_ended(self) -> None:
        """Record the time at the end of a step, without the time spent waiting for messages."""
        worker = self._session.worker
        self._marks = [*self._marks[-8:], worker.clock_seconds() - worker.waited_seconds]

    def choose(self) -> None:
        """Choose a strategy and switch the session to it; all workers must call this after the same step.

        All workers compute with rank 0's measurements, so they choose the same.
        """
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
        """Price all candidates; the first one is the strategy that needs no loss budget."""
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
            cadence = sentence.sync.make().cadence
            if not cadence.overlaps:
                seconds = computing + (compressed or dense).seconds(whole) / cadence.period
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
        """Return the strategies whose measured loss stays within the budget, the smallest payload first."""
        if self._admitted is None:
            found = map(Strategy.parse, strategies_within(self.budget, self._training()))
            sentences = [sentence for sentence in found if isinstance(sentence, Sentence)]
            self._admitted = sorted(
                sentences, key=self._payload
            )  # smallest payload first: the time for trials is limited
        return self._admitted

    def _training(self) -> Training:
        """Return what is trained here, for which losses may have been measured."""
        parameters, optimizer = self._session.parameters, self._session.optimizer
        return Training(
            model_kind(parameters.specs, parameters.sparse_names),
            "" if optimizer is None else type(optimizer).__name__.lower(),
            self._session.group.size,
            sum(parameter.numel() for parameter in parameters.trainable),
        )

    def _payload(self, sentence: Sentence) -> float:
        compressor, size = sentence.compressor, self._session.group.size
        specs = self._session.parameters.specs
        return sum(compressor.payload_bytes(s, size) if compressor.accepts(s) else s.nbytes for s in specs)

    def _iteration_seconds(self) -> float:
        return statistics.median(b - a for a, b in zip(self._marks, self._marks[1:], strict=False))
