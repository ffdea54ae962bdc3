"""`laconic run --dry-run`: what a strategy would send and store, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from torch import nn, optim

from laconic.compression.optional import memory_bytes, prices_of
from laconic.runtime.parameters import Parameters
from laconic.runtime.tier_shards import sentences_shard
from laconic.runtime.tiers import Stack, architecture_of, level_names, stacks_by_parameter
from laconic.strategy import Sentence, Strategy
from laconic.values.run_config import RunConfig
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import GatherRagged, Kind


def report(model: nn.Module, optimizer: optim.Optimizer, strategy: Strategy, workers: int, gather_sparse: bool) -> None:
    """Print the sentences, messages, bytes and memory of one worker, priced without running."""
    parameters = Parameters.of(model, gather_sparse)
    governed = stacks_by_parameter(strategy, parameters.specs, lambda _: False)
    sizes = _level_sizes(strategy, workers)
    table = Table("sentence", "over", "tensors", "messages", "payload / exchange", "sent / exchange", "memory")
    sent_total = memory_total = offloaded = control = 0.0
    for stack, members in governed.items():
        for sentence, level in stack:
            specs = [
                parameters.specs[i] for i in reversed(members)
            ]  # in the order in which backward yields their gradients
            size = sizes.get(level, workers)
            compressor = sentence.compressor
            plan = sentence.schedule.make().plan(specs, list(range(len(specs))))
            architecture = architecture_of(sentence)
            compressed = sum(compressor.payload_bytes(s, size) for s in specs if compressor.accepts(s))
            dense = sum(s.nbytes for s in specs if not compressor.accepts(s))
            payload = compressed + dense
            prices = [prices_of(compressor, s, size) for s in specs if compressor.accepts(s)]
            sent = sum(architecture.sent_bytes(nbytes, size, how) for each in prices for how, nbytes in each)
            sent += architecture.sent_bytes(dense, size)
            rounds, ragged = max(map(len, prices), default=0), GatherRagged in compressor.asks
            control += architecture.control_bytes(len(specs), size, rounds, ragged, len(plan.messages))
            buffers = sum(s.nbytes for s in specs) if level == stack[0][1] else 0  # one buffer serves all tiers
            outer = level != stack[0][1]
            inside = sizes.get(stack[0][1], 1) if outer and _crosses_in_shards(stack, sentence, specs) else 1
            payload, sent = payload / inside, sent / inside
            rule = sentence.sync.make()
            kept = rule.copies * sum(s.nbytes for s in specs) + memory_bytes(compressor, specs) / inside
            memory = buffers + kept
            offloaded += kept if rule.offloads and parameters.device.type == "cuda" else 0
            table.add_row(
                str(sentence),
                level or f"{size} workers",
                str(len(specs)),
                str(len(plan.messages)),
                _human(payload),
                _human(sent),
                _human(memory),
            )
            sent_total += sent
            memory_total += memory
    console = Console()
    count = sum(s.numel for s in parameters.specs)
    console.print(f"strategy   {strategy}", markup=False)
    console.print(f"model      {type(model).__name__}, {count:,} parameters in {len(parameters.specs)} tensors")
    console.print(f"optimizer  {type(optimizer).__name__}")
    console.print(table)
    pinned = f", {_human(offloaded)} of it in the host's pinned memory between exchanges" if offloaded else ""
    console.print(
        f"per worker: {_human(sent_total)} sent when all of it is exchanged, at most {_human(control)} of "
        f"{Kind.CONTROL} beside it, {_human(memory_total)} of buffers and memory{pinned}. Nothing was started: "
        "--dry-run ends the script here, at laconic.distribute()."
    )


def _crosses_in_shards(stack: Stack, sentence: Sentence, specs: Sequence[TensorSpec]) -> bool:
    """Return whether each member of the inner tier takes only its shard of the gradients to this outer one."""
    (inner, _), *outer = stack
    rules = [each.sync.make() for each in (inner, sentence)]
    if not all(any(map(rule.averages_gradients, range(rule.period))) for rule in rules):
        return False
    return sentences_shard(inner, [other for other, _ in outer], specs)


def _level_sizes(strategy: Strategy, workers: int) -> dict[str | None, int]:
    names = level_names(strategy)
    nodes = RunConfig.current().nodes
    return dict(zip(names, [workers // nodes, nodes], strict=False)) if len(names) > 1 else {}


def _human(n: float) -> str:
    for unit in ("B", "KB", "MB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.2f} {unit}"
        n /= 1000
    return f"{n:.2f} GB"
