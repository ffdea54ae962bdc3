"""MSCCL's XML: instructions as msccl-tools writes them and the runtimes of MSCCL read them, out and in.

What is written keeps to the rules of these readers, which the tests state one by one; neither msccl-tools nor a runtime
was run on it. Attributes that only MSCCL's later executor asks for (`minBytes`, `maxBytes`, `outofplace`) are there; it
calls a reduce-scatter `reducescatter`, where the others, and we, write `reduce_scatter`. What is read may use all
instructions, buffers and counts, in place or not, and becomes a program that is proved.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

from laconic.collective.instructions import Instructions
from laconic.collective.layout import Layout, layout
from laconic.collective.lifting import lift
from laconic.collective.lowering import lower
from laconic.collective.program import Program
from laconic.collective.relation import RELATIONS, Relation
from laconic.collective.thread_blocks import RECEIVES, SENDS, Connection, Instruction, Location, Point, ThreadBlock
from laconic.errors import LaconicError, ProgramError
from laconic.reading import Source

COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
MOST_STEPS, MOST_CHANNELS, MOST_BLOCKS, MOST_BLOCKS_OF_A_CHANNEL = 256, 32, 216, 32


def to_msccl(program: Program, protocol: str = "Simple") -> str:
    """Return a program as MSCCL's XML.

    - `program`: one with equal chunks, since MSCCL has no others.
    - `protocol`: NCCL's: `Simple`, `LL` or `LL128`.
    """
    if protocol not in ("Simple", "LL", "LL128"):
        raise ProgramError(f"NCCL's protocols are Simple, LL and LL128, not {protocol}")
    if not np.allclose(program.shares, program.shares[0]):
        raise ProgramError(f"{program.name} has chunks of different sizes, which MSCCL's XML cannot say")
    code = lower(program)
    _check_limits(code)
    where = code.layout
    channels = max((block.channel + 1 for rank in code.blocks for block in rank), default=1)
    algo = {
        "name": program.name,
        "proto": protocol,
        "nchannels": channels,
        "nchunksperloop": max(where.inputs, where.outputs),
        "ngpus": program.size,
        "coll": COLLECTIVES.get(where.collective, "custom"),
        "inplace": int(where.in_place),
        "outofplace": int(not where.in_place),
        "minBytes": 0,
        "maxBytes": 2**35,
    }
    return "\n".join([f"<algo {_attributes(algo)}>", *_gpus(code), "</algo>"]) + "\n"


def _check_limits(code: Instructions) -> None:
    for rank, blocks in enumerate(code.blocks):
        steps = max((sum(max(len(s.waits), 1) for s in block.instructions) for block in blocks), default=0)
        each = max(([b.channel for b in blocks].count(block.channel) for block in blocks), default=0)
        last = max((block.channel + 1 for block in blocks), default=0)
        for count, most, what in (
            (steps, MOST_STEPS, "steps in a thread block"),
            (len(blocks), MOST_BLOCKS, "thread blocks"),
            (each, MOST_BLOCKS_OF_A_CHANNEL, "thread blocks on a channel"),
            (last, MOST_CHANNELS, "channels"),
        ):
            if count > most:
                raise ProgramError(f"{code.name} takes {count} {what} on rank {rank}, and MSCCL has at most {most}")


def _attributes(named: Mapping[str, object]) -> str:
    return " ".join(f"{name}={quoteattr(str(value))}" for name, value in named.items())


def _gpus(code: Instructions) -> Iterator[str]:
    others = _other_ends(code)
    awaited = {
        (rank, *wait)
        for rank, blocks in enumerate(code.blocks)
        for b in blocks
        for s in b.instructions
        for wait in s.waits
    }
    for rank, blocks in enumerate(code.blocks):
        chunks = {"i_chunks": code.layout.inputs, "o_chunks": code.layout.outputs, "s_chunks": code.scratch[rank]}
        yield f"  <gpu {_attributes({'id': rank, **chunks})}>"
        numbers = [_numbers(block) for block in blocks]
        for one, block in enumerate(blocks):
            peers = {"id": one, "send": block.send, "recv": block.receive, "chan": block.channel}
            yield f"    <tb {_attributes(peers)}>"
            for position, step in enumerate(block.instructions):
                point = (rank, one, position)
                there = [other for other in others.get(point, ()) if other is not None]
                waits = [(other, numbers[other][at]) for other, at in step.waits] or [(-1, -1)]
                first = numbers[one][position] - len(waits) + 1
                for number, wait in enumerate(waits[:-1], start=first):
                    yield _step(number, "nop", ("i", -1), ("o", -1), 0, wait, False)
                source, target = step.source or there[0], step.target or there[-1]
                yield _step(numbers[one][position], step.kind, source, target, 1, waits[-1], point in awaited)
            yield "    </tb>"
        yield "  </gpu>"


def _step(
    number: int, kind: str, source: Location, target: Location, count: int, wait: tuple[int, int], awaited: bool
) -> str:
    places = {"srcbuf": source[0], "srcoff": source[1], "dstbuf": target[0], "dstoff": target[1]}
    order = {"depid": wait[0], "deps": wait[1], "hasdep": int(awaited)}
    return f"      <step {_attributes({'s': number, 'type': kind, **places, 'cnt': count, **order})}/>"


def _numbers(block: ThreadBlock) -> list[int]:
    """Return the numbers of a thread block's steps: every wait but one is a step before the instruction."""
    counts = [max(len(step.waits), 1) for step in block.instructions]
    return [int(number) - 1 for number in np.cumsum(counts)]


def _other_ends(code: Instructions) -> dict[Point, tuple[Location | None, Location | None]]:
    """Return for each instruction the place from which its message comes, and that to which it goes."""
    leaving: dict[Connection, list[Point]] = {}
    coming: dict[Connection, list[Point]] = {}
    for rank, blocks in enumerate(code.blocks):
        for one, block in enumerate(blocks):
            for position, step in enumerate(block.instructions):
                if step.kind in SENDS:
                    leaving.setdefault((rank, block.send, block.channel), []).append((rank, one, position))
                if step.kind in RECEIVES:
                    coming.setdefault((block.receive, rank, block.channel), []).append((rank, one, position))
    found: dict[Point, tuple[Location | None, Location | None]] = {}
    for connection, points in leaving.items():
        for sender, receiver in zip(points, coming[connection], strict=True):
            sends, receives = (code.blocks[r][b].instructions[p] for r, b, p in (sender, receiver))
            found[receiver] = (sends.source or sends.target, found.get(receiver, (None, None))[1])
            found[sender] = (found.get(sender, (None, None))[0], receives.target or receives.source)
    return found


def from_msccl(text: str, relation: Relation | None = None, where: str | Path = "the text") -> Program:
    """Return the program of MSCCL's XML, with its sends in the earliest steps.

    - `text`: the XML.
    - `relation`: what it does, where the file does not say it: of a custom collective, and of another root than 0.
    - `where`: where the text is from, for messages.
    """
    source = Source(where, "algorithm of MSCCL", "write what msccl-tools writes: algo, gpu, tb and step", ProgramError)
    if "<!" in text.replace("<!--", ""):
        raise source.refused("it declares entities or a document type")
    try:
        algo = ElementTree.fromstring(text)
        return lift(_instructions(algo, relation))
    except ElementTree.ParseError as error:
        raise source.refused(error) from error
    except (KeyError, ValueError) as error:
        if isinstance(error, LaconicError):
            raise
        raise source.refused(f"an attribute is missing or no number: {error}") from error


def _instructions(algo: ElementTree.Element, relation: Relation | None) -> Instructions:
    if algo.tag != "algo":
        raise ProgramError(f"an algorithm of MSCCL begins with <algo>, not <{algo.tag}>")
    size, chunks = int(algo.attrib["ngpus"]), int(algo.attrib["nchunksperloop"])
    what = relation or _relation(algo.attrib["coll"], size, chunks)
    found = layout(what, algo.attrib.get("inplace", "0") != "0")
    gpus = {int(gpu.attrib["id"]): gpu for gpu in algo.findall("gpu")}
    if sorted(gpus) != list(range(what.size)):
        raise ProgramError(f"the algorithm is for {what.size} ranks and describes ranks {sorted(gpus)}")
    blocks = tuple(tuple(_blocks(gpus[rank], rank, found)) for rank in range(size))
    return Instructions(algo.attrib.get("name", "an algorithm of MSCCL"), what, found, blocks)


def _relation(collective: str, size: int, chunks: int) -> Relation:
    names = {theirs: ours for ours, theirs in COLLECTIVES.items()} | {"reducescatter": "reduce_scatter"}
    if collective not in names:
        raise ProgramError(f"{collective} does not say who holds what before and after: give the relation")
    return RELATIONS[names[collective]](size, chunks * size if names[collective] == "all_to_all" else chunks)


def _blocks(gpu: ElementTree.Element, rank: int, where: Layout) -> Iterator[ThreadBlock]:
    blocks = {int(tb.attrib["id"]): tb for tb in gpu.findall("tb")}
    if sorted(blocks) != list(range(len(blocks))):
        raise ProgramError(f"the thread blocks of rank {rank} are numbered {sorted(blocks)}, not from 0 on")
    steps = [sorted(blocks[one].findall("step"), key=lambda step: int(step.attrib["s"])) for one in range(len(blocks))]
    ends = [_ends(several) for several in steps]
    for one, several in enumerate(steps):
        made: list[Instruction] = []
        waits: list[tuple[int, int]] = []
        for step in several:
            other, number = int(step.attrib["depid"]), int(step.attrib["deps"])
            if other >= 0:
                if other >= len(ends) or number not in ends[other]:
                    raise ProgramError(
                        f"rank {rank} waits for step {number} of thread block {other}, which is not there"
                    )
                waits.append((other, ends[other][number]))
            for k in range(0 if step.attrib["type"] == "nop" else int(step.attrib["cnt"])):
                made.append(_instruction(step, k, rank, where, tuple(waits)))
                waits = []
        send, receive, channel = (int(blocks[one].attrib[name]) for name in ("send", "recv", "chan"))
        yield ThreadBlock(send, receive, channel, tuple(made))


def _ends(steps: list[ElementTree.Element]) -> dict[int, int]:
    """Return the position of the last instruction of each step, of which one with a count has several."""
    counts = [0 if step.attrib["type"] == "nop" else int(step.attrib["cnt"]) for step in steps]
    return {int(s.attrib["s"]): int(end) - 1 for s, end in zip(steps, np.cumsum(counts), strict=True)}


def _instruction(
    step: ElementTree.Element, k: int, rank: int, where: Layout, waits: tuple[tuple[int, int], ...]
) -> Instruction:
    kind = step.attrib["type"]
    source, target = (
        where.memory(rank, (step.attrib[buffer], int(step.attrib[offset]) + k))
        for buffer, offset in (("srcbuf", "srcoff"), ("dstbuf", "dstoff"))
    )
    return Instruction(
        kind, source if kind not in ("r", "rcs") else None, target if kind not in ("s", "rrs") else None, waits
    )
