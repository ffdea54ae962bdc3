"""GPUs in instances: the vendor's table, no overlap, no interference, and fragments."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from laconic.cluster.sharing.mig import A100, Instance, Layout, maximal_layouts, rates
from laconic.cluster.sharing.throughput import Throughput
from laconic.errors import ClusterError


@pytest.mark.evidence("mig")
@pytest.mark.technique("mig", check=1)
def test_an_a100_has_19_maximal_layouts_of_14_kinds() -> None:
    layouts = maximal_layouts()
    assert len(layouts) == 19
    assert len({frozenset(Counter(i.profile for i in layout.instances).items()) for layout in layouts}) == 14


@pytest.mark.technique("mig", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_instances_never_overlap_and_neighbours_change_no_rate(seed: int) -> None:
    draws = np.random.default_rng(seed)
    profiles = {f"job{i}": Throughput.knee(float(draws.uniform(0.1, 1)), 1.0 + i) for i in range(60)}
    layout, filled = Layout(A100), 0
    for job in profiles:
        wanted = A100.profiles[draws.integers(len(A100.profiles))].name
        places = list(layout.places(wanted))
        if places:
            layout = places[draws.integers(len(places))]
        slices = [s for p, start in layout.instances for s in range(start, start + A100.profile(p).width)]
        assert len(slices) == len(set(slices)) and max(slices) < 8
        assert sum(A100.profile(p).compute for p, _ in layout.instances) <= 7
        idle = [i for i in layout.instances if i not in dict(layout.jobs)]
        if idle:
            before, layout, at = rates(layout, profiles), layout.run(idle[0], job), idle[0]
            after = rates(layout, profiles)
            filled += bool(before)
            assert {name: after[name] for name in before} == before
            assert after[job] == profiles[job].rate(A100.profile(at.profile).compute / 7)
        elif draws.random() < 0.7:
            layout = layout.end(layout.jobs[0][1])
            layout = layout.destroy(next(i for i in layout.instances if i not in dict(layout.jobs)))
    assert filled > 5


@pytest.mark.technique("mig", check=2)
def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ClusterError, match="overlaps"):
        Layout(A100, (Instance("4g.20gb", 0), Instance("2g.10gb", 2)))
    with pytest.raises(ClusterError, match="cannot begin"):
        Layout(A100, (Instance("2g.10gb", 1),))
    busy = Layout(A100, (Instance("3g.20gb", 0),)).run(Instance("3g.20gb", 0), "a")
    with pytest.raises(ClusterError, match="a runs in"):
        busy.destroy(Instance("3g.20gb", 0))
    with pytest.raises(ClusterError, match="its own"):
        busy.run(Instance("3g.20gb", 0), "b")


@pytest.mark.technique("mig", check=2)
def test_compute_slices_are_counted_apart_from_memory() -> None:
    wide = Layout(A100, (Instance("4g.20gb", 0), Instance("3g.20gb", 4)))
    assert wide.is_maximal
    with pytest.raises(ClusterError, match="8 compute slices"):
        part = A100.__class__((*A100.profiles, A100.profile("4g.20gb")._replace(name="4g", starts=(4,))))
        Layout(part, (Instance("4g.20gb", 0), Instance("4g", 4)))


def test_free_slices_in_two_places_are_no_large_instance() -> None:
    fragments = Layout(A100, (Instance("1g.5gb", 1), Instance("1g.5gb", 5)))
    assert not list(fragments.places("3g.20gb"))
    assert [next(iter(fragments.places("2g.10gb"))).instances[1]] == [Instance("2g.10gb", 2)]
