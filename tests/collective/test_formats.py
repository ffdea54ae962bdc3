"""Programs as JSON, text, MSCCL's XML and MSCCL++'s plans: what is written is read again, and keeps to the readers'
rules."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from laconic.collective.compose import beside, relabel
from laconic.collective.dependence import earliest
from laconic.collective.formats.msccl_xml import from_msccl, to_msccl
from laconic.collective.formats.mscclpp_plan import to_mscclpp
from laconic.collective.formats.program_json import from_json, to_json
from laconic.collective.formats.program_text import to_text
from laconic.collective.generators import generators, make_program
from laconic.collective.layout import layout
from laconic.collective.program import COPY, REDUCE, Program
from laconic.collective.relation import all_reduce, broadcast, gather
from laconic.errors import ProgramError
from tests.collective.plan_interpreter import PlanInterpreter

NAMES = [one.name for one in generators()]
UNKNOWN_TO_MSCCL = ("scatter", "gather")
"""Relations that a file does not name: its reader is given them."""
STEP = ["s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"]


def programs(name: str, sizes: tuple[int, ...] = (1, 2, 3, 4, 6, 9)) -> list[Program]:
    found = []
    for size in sizes:
        try:
            found.append(make_program(name, size, 1))
        except ProgramError:
            continue
    return found


@pytest.mark.parametrize("name", NAMES)
def test_json_is_read_as_it_was_written(name: str) -> None:
    for program in programs(name):
        again = from_json(to_json(program))
        assert again == program and again.name == program.name and again.relation.name == program.relation.name
        assert set(json.loads(to_json(program))) == {"name", "collective", "ranks", "chunks", "sends"}


def test_json_says_what_is_not_standard() -> None:
    ring = make_program("ring", 3)
    halves = beside([ring, ring], [1.0, 2.0], "uneven")
    assert from_json(to_json(halves)) == halves and len(json.loads(to_json(halves))["shares"]) == 6
    moved = relabel(make_program("ring_scatter", 3), [1, 2, 0])
    written = json.loads(to_json(moved))
    assert written["after"] == [[2], [0], [1]] and written["before"] == [[0, 1, 2]] * 3 and written["pieces"] == 3
    assert from_json(to_json(moved)) == moved
    root = Program.of("root", broadcast(2, 1, root=1), [(0, 1, 0, 0, COPY)])
    assert from_json(to_json(root)) == root


def test_json_that_is_wrong_is_refused_in_a_sentence() -> None:
    tree = json.loads(to_json(make_program("ring", 3)))

    def read(**changes: object) -> Program:
        return from_json(json.dumps(tree | changes), "file.json")

    with pytest.raises(ProgramError, match=r"file\.json is no program"):
        from_json("{", "file.json")
    with pytest.raises(ProgramError, match="unknown 'color'"):
        read(color=1)
    with pytest.raises(ProgramError, match="swap is none of all_reduce"):
        read(collective="swap")
    with pytest.raises(ProgramError, match="given together or not at all"):
        read(before=[[0]])
    with pytest.raises(ProgramError, match="list chunks below 3 for each of 3 ranks"):
        read(before=[[0], [1], [3]], after=[[0], [1], [2]], pieces=3)
    with pytest.raises(ProgramError, match="is no program"):
        read(sends=[[0, 0, 1, 0, "add"]])
    with pytest.raises(ProgramError, match="lacks"):
        read(sends=tree["sends"][1:])


def test_text_says_who_sends_what() -> None:
    text = to_text(make_program("halving_doubling", 4))
    assert text.splitlines()[0] == "halving_doubling: all_reduce of 4 ranks"
    assert text.splitlines()[1].startswith(
        "4 chunks, each 0.25 of a vector; 4 steps, 24 sends; a rank sends at most 1.5"
    )
    assert text.splitlines()[2] == "step 0  0→2 +2-3  1→3 +2-3  2→0 +0-1  3→1 +0-1"
    assert "1→3 0-1" in text.splitlines()[5] and len(text.splitlines()) == 6
    uneven = beside([make_program("ring", 2)] * 2, [1.0, 3.0], "uneven")
    assert "0.125 to 0.375 of a vector each" in to_text(uneven)


@pytest.mark.parametrize("name", NAMES)
def test_xml_is_read_as_the_same_sends(name: str) -> None:
    for program in programs(name):
        known = program.relation.name not in UNKNOWN_TO_MSCCL
        again = from_msccl(to_msccl(program), None if known else program.relation)
        assert again == earliest(program) and again.name == program.name


@pytest.mark.parametrize("name", NAMES)
def test_xml_keeps_to_the_rules_of_its_readers(name: str) -> None:
    """Of NCCL's small parser, MSCCL's runtime and msccl-tools: quotes, attributes, numbers, bounds and waits."""
    for program in programs(name):
        text = to_msccl(program)
        assert text.startswith("<algo ") and "'" not in text and "\t" not in text and "&" not in text
        assert all(line.strip().startswith("<") and "  " not in line.strip() for line in text.splitlines())
        algo = ElementTree.fromstring(text)
        named = "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes"
        assert list(algo.attrib) == named.split()
        known = {"allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce"}
        assert algo.get("coll") in ({"custom"} if program.relation.name in UNKNOWN_TO_MSCCL else known)
        assert [gpu.get("id") for gpu in algo] == list(map(str, range(program.size)))
        per_loop = int(algo.attrib["nchunksperloop"])
        for gpu in algo:
            check_gpu(gpu, program.size, int(algo.attrib["nchannels"]))
            assert max(int(gpu.attrib["i_chunks"]), int(gpu.attrib["o_chunks"])) == per_loop


def check_gpu(gpu: ElementTree.Element, size: int, channels: int) -> None:
    rank = int(gpu.attrib["id"])
    chunks = {buffer: int(gpu.attrib[f"{buffer}_chunks"]) for buffer in "ios"}
    blocks = gpu.findall("tb")
    assert [int(tb.attrib["id"]) for tb in blocks] == list(range(len(blocks))) and len(blocks) <= 216
    connections = [(way, tb.attrib[way], tb.attrib["chan"]) for tb in blocks for way in ("send", "recv")]
    used = [one for one in connections if one[1] != "-1"]
    assert len(set(used)) == len(used)
    awaited = set()
    for tb in blocks:
        peers = [int(tb.attrib["send"]), int(tb.attrib["recv"])]
        assert all(-1 <= peer < size and peer != rank for peer in peers) and 0 <= int(tb.attrib["chan"]) < channels
        assert [int(step.attrib["s"]) for step in tb] == list(range(len(tb))) and len(tb) <= 256
        for step in tb:
            values = step.attrib
            assert list(values) == STEP
            assert values["srcbuf"] in "ios" and values["dstbuf"] in "ios" and values["hasdep"] in "01"
            kind = values["type"]
            assert kind not in ("s", "rcs", "rrs", "rrcs") or peers[0] >= 0
            assert kind not in ("r", "rcs", "rrs", "rrc", "rrcs") or peers[1] >= 0
            assert values["cnt"] == ("0" if kind == "nop" else "1")
            for way in [
                *(["src"] if kind in ("s", "rrs", "rrc", "rrcs", "cpy") else []),
                *(["dst"] if kind in ("r", "rcs", "rrc", "rrcs", "cpy") else []),
            ]:
                assert 0 <= int(values[f"{way}off"]) < chunks[values[f"{way}buf"]]
            if values["depid"] != "-1":
                awaited.add((int(values["depid"]), int(values["deps"])))
                assert int(values["depid"]) != int(tb.attrib["id"])
            else:
                assert values["deps"] == "-1" and kind != "nop"
        last = [step.attrib["type"] for step in tb][-1]
        assert last != "nop"
        for step, after in zip(list(tb), list(tb)[1:], strict=False):
            assert step.attrib["type"] != "nop" or after.attrib["depid"] != "-1"
    flagged = {
        (int(tb.attrib["id"]), int(step.attrib["s"])) for tb in blocks for step in tb if step.get("hasdep") == "1"
    }
    assert flagged == awaited


def test_xml_of_what_msccl_cannot_say_is_refused() -> None:
    ring = make_program("ring", 3)
    with pytest.raises(ProgramError, match="chunks of different sizes"):
        to_msccl(beside([ring, ring], [1.0, 2.0], "uneven"))
    with pytest.raises(ProgramError, match="takes 257 steps in a thread block on rank 0, and MSCCL has at most 256"):
        to_msccl(Program.of("long", broadcast(2, 257), [(0, 0, 1, chunk, COPY) for chunk in range(257)]))
    with pytest.raises(ProgramError, match="Simple, LL and LL128, not ll"):
        to_msccl(ring, "ll")
    assert 'proto="LL128"' in to_msccl(ring, "LL128")


def test_a_custom_collective_is_read_with_its_relation() -> None:
    what = gather(3, 3)
    program = Program.of("gather", what, [(0, 1, 0, 1, COPY), (0, 2, 0, 2, COPY)])
    text = to_msccl(program)
    assert 'coll="custom"' in text and from_msccl(text, what) == program
    with pytest.raises(ProgramError, match="custom does not say who holds what"):
        from_msccl(text)


def step(
    number: int, kind: str, source: str, target: str, count: int = 1, wait: tuple[int, int] = (-1, -1), has: int = 0
) -> str:
    """A step as msccl-tools writes it, with places such as i3."""
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1:]}" dstbuf="{target[0]}" '
        f'dstoff="{target[1:]}" cnt="{count}" depid="{wait[0]}" deps="{wait[1]}" hasdep="{has}"/>'
    )


def all_pairs_by_scratch(second_wait: tuple[int, int] = (1, 0)) -> str:
    """An all-reduce of two ranks with two chunks each: halves land in the scratch buffer and are added there from, in
    thread blocks of their own, and sums go back; counts, waits and nops as in published files."""
    gpus = []
    for rank in range(2):
        mine, other = 2 * rank, 2 * (1 - rank)
        sends = step(0, "s", f"i{other}", "s0", 2, has=1)
        receives = step(0, "r", f"i{mine}", "s0", 2, has=1) + step(1, "nop", "i-1", "o-1", 0, (0, 0))
        receives += step(2, "r", f"o{other}", f"o{other}", 2)
        adds = step(0, "re", "s0", f"i{mine}", 1, second_wait) + step(1, "re", "s1", f"i{mine + 1}", has=1)
        back = step(1, "s", f"i{mine}", f"o{mine}", 2, (2, 1))
        peer = 1 - rank
        gpus.append(
            f'<gpu id="{rank}" i_chunks="4" o_chunks="4" s_chunks="2">'
            f'<tb id="0" send="{peer}" recv="-1" chan="0">{sends}{back}</tb>'
            f'<tb id="1" send="-1" recv="{peer}" chan="0">{receives}</tb>'
            f'<tb id="2" send="-1" recv="-1" chan="0">{adds}</tb></gpu>'
        )
    return (
        '<algo name="pairs" proto="LL" nchannels="1" nchunksperloop="4" ngpus="2" coll="allreduce" inplace="1">'
        f"<!-- two ranks -->{''.join(gpus)}</algo>"
    )


def test_a_file_with_scratch_counts_and_waits_is_read() -> None:
    expected = [(0, 1 - r, r, 2 * r + k, REDUCE) for r in range(2) for k in range(2)]
    expected += [(1, r, 1 - r, 2 * r + k, COPY) for r in range(2) for k in range(2)]
    program = from_msccl(all_pairs_by_scratch())
    assert program.relation.same_as(all_reduce(2, 4)) and program.name == "pairs"
    assert sorted(map(tuple, program.sends.table.tolist())) == sorted(expected)


def test_a_file_that_is_out_of_place_is_read() -> None:
    """An all-gather of two ranks: each copies its block to the output and sends it from the input."""
    gpus = "".join(
        f'<gpu id="{r}" i_chunks="1" o_chunks="2" s_chunks="0"><tb id="0" send="{1 - r}" recv="{1 - r}" chan="0">'
        + step(0, "cpy", "i0", f"o{r}")
        + step(1, "s", "i0", f"o{r}")
        + step(2, "r", "i0", f"o{1 - r}")
        + "</tb></gpu>"
        for r in range(2)
    )
    head = '<algo name="both" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0">'
    program = from_msccl(f"{head}{gpus}</algo>")
    assert program.sends.table.tolist() == [[0, 1, 0, 1, COPY], [0, 0, 1, 0, COPY]]
    with pytest.raises(ProgramError, match="reads o1, where nothing is"):
        from_msccl(
            f"{head}{gpus}</algo>".replace(
                'type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1"',
                'type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="7"',
            )
        )


def test_a_wrong_file_is_refused_in_a_sentence() -> None:
    good = all_pairs_by_scratch()
    with pytest.raises(ProgramError, match="does not wait for instruction"):
        from_msccl(all_pairs_by_scratch(second_wait=(-1, -1)))
    with pytest.raises(ProgramError, match=r"a\.xml is no algorithm of MSCCL"):
        from_msccl(good[:-5], where="a.xml")
    with pytest.raises(ProgramError, match="declares entities"):
        from_msccl("<!DOCTYPE x>" + good)
    with pytest.raises(ProgramError, match="an attribute is missing"):
        from_msccl(good.replace('recv="1" ', ""))
    with pytest.raises(ProgramError, match="begins with <algo>"):
        from_msccl("<graph/>")
    with pytest.raises(ProgramError, match=r"describes ranks \[0, 2\]"):
        from_msccl(good.replace('gpu id="1"', 'gpu id="2"'))
    with pytest.raises(ProgramError, match="waits for step 5 of thread block 2, which is not there"):
        from_msccl(good.replace('depid="2" deps="1"', 'depid="2" deps="5"'))
    with pytest.raises(ProgramError, match="adds chunk 0 of rank 1 to chunk 1 of rank 0"):
        from_msccl(
            good.replace('dstbuf="i" dstoff="0"', 'dstbuf="i" dstoff="9"')
            .replace('dstoff="1"', 'dstoff="0"')
            .replace('dstoff="9"', 'dstoff="1"')
        )


def test_what_is_sent_on_beside_the_ranks_own_is_refused() -> None:
    """Rank 1 forwards rank 0's chunk from its scratch buffer to rank 2, which no program of sends says."""
    steps = {0: [step(0, "s", "i0", "s0")], 1: [step(0, "rcs", "i0", "s0")], 2: [step(0, "rrc", "i0", "i0")]}
    peers = {0: (1, -1), 1: (2, 0), 2: (-1, 1)}
    gpus = "".join(
        f'<gpu id="{r}" i_chunks="1" o_chunks="1" s_chunks="1"><tb id="0" send="{a}" recv="{b}" chan="0">'
        f"{steps[r][0]}</tb></gpu>"
        for r, (a, b) in peers.items()
    )
    head = '<algo name="beside" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="3" coll="reduce" inplace="1">'
    with pytest.raises(ProgramError, match="what the rank has of others beside its own"):
        from_msccl(f"{head}{gpus}</algo>")


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_of_mscclpp_carries_the_program_out(name: str) -> None:
    for program in programs(name, (1, 2, 3, 4, 6)):
        if program.relation.name in ("reduce", *UNKNOWN_TO_MSCCL):
            with pytest.raises(ProgramError, match=f"MSCCL\\+\\+ has no {program.relation.name}"):
                to_mscclpp(program)
            continue
        plan = json.loads(to_mscclpp(program))
        where, draw = layout(program.relation), np.random.default_rng(program.size)
        values = {place: draw.integers(-99, 99, 3) for place in where.start}
        summed = [sum(v for place, v in values.items() if place[1] == chunk) for chunk in range(program.chunks)]
        run = PlanInterpreter(plan, {(place[0], *at): values[place] for place, at in where.start.items()})
        run.run(draw)
        for (rank, chunk), at in where.end.items():
            np.testing.assert_array_equal(run.held[rank, *at], summed[chunk])
        assert not any(run.signals.values()) and not any(run.semaphores.values())


def test_a_plan_has_the_fields_that_the_executor_reads() -> None:
    plan = json.loads(to_mscclpp(make_program("ring_gather", 3)))
    assert (plan["collective"], plan["protocol"], plan["inplace"]) == ("allgather", "Simple", True)
    gpu = plan["gpus"][1]
    assert [gpu[f"{what}_chunks"] for what in ("input", "output", "scratch")] == [1, 3, 0]
    assert gpu["channels"] == [{"channel_type": "memory", "connected_to": [0, 2]}]
    assert gpu["remote_buffers"] == [{"rank": 2, "type": "o", "access_channel_types": ["memory"]}]
    (block,) = gpu["threadblocks"]
    assert block["channels"] == [{"channel_type": "memory", "channel_ids": [1, 0]}]
    assert block["remote_buffer_refs"] == [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]
    names = [op["name"] for op in block["ops"] if op["name"] != "nop"]
    assert names == ["rlxsignal", "rlxwait", "put", "signal", "wait", "put", "signal", "wait"]
    put = next(op for op in block["ops"] if op["name"] == "put")
    assert put["src_buff"] == [{"type": "o", "index": 1, "size": 1}]
    assert put["dst_buff"] == [{"buffer_id": 0, "index": 1, "size": 1}]
