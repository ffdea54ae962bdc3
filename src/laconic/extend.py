"""All that an author of techniques needs, in one place; CONTRIBUTING.md builds one of each kind, step by step.

    from laconic.extend import Codec, knob, technique

Derive from the base class of an axis, put `@technique(...)` above `@dataclass(frozen=True)`, and declare what the class
promises: `laconic check FILE` says whether it keeps it. A class that is not registered can be written in a strategy by
its place, as `codecs/mine.py:Mine(0.1)`.
"""

from laconic.architecture.base import Architecture
from laconic.claims import (
    Contraction,
    CoversOnce,
    EveryRankEndsWithTheSum,
    Lossless,
    Payload,
    ReplicasEqual,
    Unbiased,
    WireFactor,
)
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.selector import Selector
from laconic.compression.wrapper import StatefulWrapper, Wrapper, Wrapping
from laconic.kernels.draws import uniform
from laconic.registry import extend, knob, named_sentence, technique
from laconic.schedule.base import Schedule
from laconic.sync.base import Sync, SyncContext, average_buffers
from laconic.topology.base import Topology
from laconic.values.cadence import Cadence, Stretch
from laconic.values.comm_plan import CommPlan, Message, whole
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

__all__ = [
    "Architecture",
    "Cadence",
    "Codec",
    "CommPlan",
    "Compressor",
    "Contraction",
    "CoversOnce",
    "EveryRankEndsWithTheSum",
    "Exchange",
    "Lossless",
    "Meet",
    "Message",
    "Outcome",
    "Payload",
    "ReplicasEqual",
    "Schedule",
    "Selector",
    "State",
    "StatefulWrapper",
    "Stretch",
    "Sync",
    "SyncContext",
    "TensorSpec",
    "Topology",
    "Unbiased",
    "WireFactor",
    "Wrapper",
    "Wrapping",
    "average_buffers",
    "extend",
    "knob",
    "named_sentence",
    "technique",
    "uniform",
    "whole",
]
