"""The time of a step of each method, for a model's size and a network, by the planner's own prices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from laconic.errors import LaconicError
from laconic.frontier.methods import last_sentence
from laconic.frontier.shapes import Shape
from laconic.network.network_tree import Network
from laconic.planner.certainty import step_errors
from laconic.planner.codec_times import codecs_on
from laconic.planner.deployment import Deployment
from laconic.planner.networks import links_of
from laconic.planner.price import Pricer
from laconic.planner.priced_candidates import BASELINE, CAPS, MIB
from laconic.planner.step_price import StepPrice
from laconic.strategy import Sentence, Strategy
from laconic.units import write_rate


@dataclass(frozen=True)
class Traffic:
    """What the ledger counted in a training: the bytes that one worker sent in a step, of a model of this size."""

    bytes_per_step: float
    parameters: int
    steps: int  # of the training, for phases that end at a step


@dataclass(frozen=True)
class StepTime:
    """The time of a step in the mean over a training, the factors by which predictions of its kind were off, its bytes.

    `priced` is False where the strategy has no price in closed form: its measured bytes, scaled to the model's size,
    then cross the link, behind the backward pass if all of its parts send during that.
    """

    seconds: float
    low_factor: float
    high_factor: float
    sent_bytes: float
    priced: bool = True


class Clock:
    """Times of steps for one size of model, on any network."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._pricers: dict[float, Pricer] = {}

    @cached_property
    def _first(self) -> Pricer:
        shape = self.shape
        network = self._network(1e9)
        return Pricer(Deployment(shape.profile(), network, shape.workers, codecs=codecs_on(shape.chip)))

    @property
    def computing_seconds(self) -> float:
        return self._first.deployment.computing_seconds

    def ddp(self, bits_per_second: float) -> StepTime:
        """Return the time of a step of DDP with 16-bit gradients, in the best of its usual bucket sizes."""
        pricer, baseline = self._pricer(bits_per_second), Strategy.parse(BASELINE)
        assert isinstance(baseline, Sentence)
        best = min((pricer.ddp(baseline.chain, cap * MIB) for cap in CAPS), key=lambda price: price.seconds)
        return StepTime(float(best.seconds), *step_errors(baseline), best.sent_bytes)

    def step(self, strategy: Strategy | None, traffic: Traffic, bits_per_second: float) -> StepTime:
        """Return the time of a step of a strategy, of which the ledger counted this traffic in a training."""
        pricer = self._pricer(bits_per_second)
        if strategy is not None:
            try:
                price = pricer.price(strategy, traffic.steps)
            except LaconicError:
                pass
            else:
                return StepTime(float(price.seconds), *step_errors(strategy), price.sent_bytes)
        return self._by_bytes(pricer, strategy, traffic)

    def _by_bytes(self, pricer: Pricer, strategy: Strategy | None, traffic: Traffic) -> StepTime:
        deployment = pricer.deployment
        sent = traffic.bytes_per_step * self.shape.parameters / traffic.parameters
        latency, seconds_per_byte = deployment.path
        wire = latency + sent * seconds_per_byte
        hidden = float(deployment.backward.sum()) if _overlaps(strategy) else 0.0
        seconds = deployment.computing_seconds + self._coding(pricer, strategy) + max(0.0, wire - hidden)
        errors = (0.8, 1.25) if strategy is None else step_errors(strategy)
        return StepTime(seconds, *errors, sent, priced=False)

    def _coding(self, pricer: Pricer, strategy: Strategy | None) -> float:
        """Return the seconds of encoding and decoding by the last phase's compressor, as if in every step."""
        sentence = last_sentence(strategy)
        try:
            price: StepPrice | None = None if sentence is None else pricer.price(Sentence.of(sentence.compression))
        except LaconicError:
            return 0.0
        return 0.0 if price is None or sentence is None else price.coding_seconds / sentence.sync.make().period

    def _pricer(self, bits_per_second: float) -> Pricer:
        if bits_per_second not in self._pricers:
            self._pricers[bits_per_second] = self._first.on(self._network(bits_per_second))
        return self._pricers[bits_per_second]

    def _network(self, bits_per_second: float) -> Network:
        return links_of(write_rate(bits_per_second), self.shape.workers).network


def _overlaps(strategy: Strategy | None) -> bool:
    """Return whether every part of a strategy sends gradients during the backward pass that computes them."""
    if strategy is None:
        return False
    if isinstance(strategy, Sentence):
        cadence = strategy.sync.make().cadence
        return cadence is not None and cadence.overlaps
    return all(map(_overlaps, strategy.parts_within))
