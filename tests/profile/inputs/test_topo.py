"""`nvidia-smi topo -m`: tables of usual machines, generated ones, and ones that are cut."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.network.network_tree import Level, Network
from laconic.profile.inputs import nvidia_topo
from laconic.profile.inputs.files import InputError
from laconic.profile.inputs.nvidia_topo import CLASSES

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def table(names: list[str], way: dict[tuple[str, str], str], affinity: bool = True, colour: bool = True) -> str:
    """As the tool prints it: tabs, an underlined head, affinities behind GPUs."""
    head = "\t" + "\t".join(names) + ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID" if affinity else "")
    lines = [f"\x1b[4m{head}\x1b[0m" if colour else head]
    for name in names:
        cells = [" X " if name == other else way.get((name, other)) or way[other, name] for other in names]
        more = "\t0-47,96-143\t0\t\tN/A" if affinity and name.startswith("GPU") else ""
        lines.append("\t".join([name, *cells]) + more)
    return "\n".join(lines) + "\n" + LEGEND


def pairs(names: list[str]) -> list[tuple[str, str]]:
    return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]


def machine(gpus: int, choose: object, nics: int = 0) -> str:
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    return table(names, {(a, b): choose(a, b) for a, b in pairs(names)})  # type: ignore[operator]


def test_eight_behind_switches_of_nvlink() -> None:
    """NV12 to each of seven is one set of twelve links: 300 GB/s, not seven times as much."""
    found = nvidia_topo.parse(
        machine(8, lambda a, b: "NV12" if b.startswith("GPU") else "PXB" if a == "GPU3" else "SYS", 2)
    )
    assert len(found.gpus) == 8 and found.nics == ("NIC0", "NIC1") and found.nic_names["NIC1"] == "mlx5_1"
    assert found.numa["GPU5"] == "0"
    assert found.link("GPU0", "GPU7") == "NV12"
    assert found.nearest_nic("GPU3") == "NIC0"
    (own,) = found.levels("a100")
    assert (own.gpus, own.bits_per_second) == (1, 8 * 300e9)
    assert found.bytes_per_second("GPU0", "GPU1", "a100") == 300e9
    assert nvidia_topo.rate("NV18", "h100") == 450e9 and nvidia_topo.rate("NV18", "b200") == 900e9


def test_a_cube_of_direct_links() -> None:
    """A DGX-1's mesh: one or two links to four neighbours make six, 150 GB/s."""
    mesh = {
        (0, 1): 1,
        (0, 2): 1,
        (0, 3): 2,
        (0, 4): 2,
        (1, 2): 2,
        (1, 3): 1,
        (1, 5): 2,
        (2, 3): 1,
        (2, 6): 2,
        (3, 7): 2,
    }
    mesh |= {(4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 1}
    choose = lambda a, b: f"NV{mesh[int(a[3:]), int(b[3:])]}" if (int(a[3:]), int(b[3:])) in mesh else "SYS"  # noqa: E731
    levels = nvidia_topo.parse(machine(8, choose)).levels("v100")
    assert [(unit.gpus, unit.bits_per_second) for unit in levels] == [(1, 8 * 150e9)]


def test_pairs_on_pcie_make_three_levels() -> None:
    """Two below a switch, four below a processor, eight in the machine; a network can be built of it."""

    def choose(a: str, b: str) -> str:
        x, y = int(a[3:]), int(b[3:])
        return "PIX" if x // 2 == y // 2 else "NODE" if x // 4 == y // 4 else "SYS"

    found = nvidia_topo.parse(machine(8, choose))
    assert found.groups("NODE") == (("GPU0", "GPU1", "GPU2", "GPU3"), ("GPU4", "GPU5", "GPU6", "GPU7"))
    levels = found.levels("t4")
    assert [unit.gpus for unit in levels] == [1, 2, 4]
    assert [unit.bits_per_second for unit in levels] == pytest.approx([8 * s * 15.75e9 for s in (0.85, 0.6, 0.45)])
    network = Network(8, tuple(Level(u.gpus, u.bits_per_second, u.latency_seconds) for u in levels))
    assert len(network.capacities) == 2 * (8 + 4 + 2)


def test_one_gpu_and_old_names(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(machine(1, None))
    found = nvidia_topo.read(tmp_path / "topo.txt")
    assert found.gpus == ("GPU0",) and not found.links and found.nearest_nic("GPU0") is None
    assert [unit.gpus for unit in found.levels("h200")] == [1]
    old = table(
        ["GPU0", "GPU1", "mlx5_0"], {("GPU0", "GPU1"): "SOC", ("GPU0", "mlx5_0"): "PHB", ("GPU1", "mlx5_0"): "SOC"}
    )
    found = nvidia_topo.parse(old)
    assert found.link("GPU1", "GPU0") == "SYS" and found.nics == ("mlx5_0",)


def test_wide_tables_in_which_the_tool_runs_cells_together() -> None:
    """Seen in the wild: two cells without a tab between them, and affinities written over the last one."""
    text = machine(4, lambda a, b: "NV18" if b.startswith("GPU") else "PIX" if a == "GPU2" else "NODE", 2)
    damaged = text.replace("GPU2\tNV18\tNV18\t X \tNV18\tPIX\tPIX", "GPU2\tNV18\tNV18\t X \tNV18\tPIXPIX")
    damaged = damaged.replace("NODE\tNODE\t0-47,96-143", "NODE\tNO0-47")
    assert damaged.count("NO0-47") == 3 and "PIXPIX" in damaged
    whole, found = nvidia_topo.parse(text), nvidia_topo.parse(damaged)
    assert found.links == whole.links


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_generated_tables(drawn: st.DataObject) -> None:
    names = [f"GPU{i}" for i in range(drawn.draw(st.integers(1, 9)))]
    names += [f"NIC{i}" for i in range(drawn.draw(st.integers(0, 3)))]
    classes = st.sampled_from(CLASSES) | st.integers(1, 18).map(lambda n: f"NV{n}")
    way = {pair: drawn.draw(classes) for pair in pairs(names)}
    text = table(names, way, drawn.draw(st.booleans()), drawn.draw(st.booleans()))
    found = nvidia_topo.parse(text)
    assert [*found.gpus, *found.nics] == names
    assert found.links == way | {(b, a): kind for (a, b), kind in way.items()}
    levels = found.levels(drawn.draw(st.sampled_from(["a100", "t4", "b200"])))
    sizes = [unit.gpus for unit in levels]
    assert sizes[0] == 1 and sizes == sorted(set(sizes)) and all(unit.bits_per_second > 0 for unit in levels)
    Network(len(found.gpus), tuple(Level(u.gpus, u.bits_per_second, u.latency_seconds) for u in levels))


WHOLE = machine(4, lambda a, b: "NV4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "holds no table of links"),
        (LEGEND, "holds no table of links"),
        ("\n".join(WHOLE.splitlines()[:3]), "no line for GPU2, GPU3"),
        (WHOLE.replace("GPU2\tNV4\tNV4", "GPU2\tNV4"), "GPU1 and GPU2 do not agree"),
        (WHOLE.replace("NV4", "WIFI"), "'WIFI' in the line of GPU0 .* is no class of link"),
        (WHOLE.replace("GPU1\tNV4", "GPU1\tSYS"), "GPU0 and GPU1 do not agree"),
        (WHOLE[: WHOLE.index("GPU3\tNV4") + 12], "do not agree|does not say"),
    ],
)
def test_what_is_no_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        nvidia_topo.parse(text)


def test_what_nobody_knows_is_refused() -> None:
    found = nvidia_topo.parse(WHOLE)
    with pytest.raises(InputError, match="nothing is known between GPU0 and GPU9"):
        found.link("GPU0", "GPU9")
    with pytest.raises(InputError, match="'USB' is no class"):
        nvidia_topo.rate("USB")
    with pytest.raises(LaconicError, match="no GPU"):
        found.levels("abacus")


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=100) | st.integers(0, len(WHOLE)).map(lambda n: WHOLE[:n]))
def test_nothing_crashes(text: str) -> None:
    with contextlib.suppress(InputError):
        nvidia_topo.parse(text).levels()
