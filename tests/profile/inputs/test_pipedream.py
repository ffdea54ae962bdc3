"""Profiles in PipeDream's form: what is read of them, and what is refused."""

from __future__ import annotations

import pytest

from laconic.profile.inputs.files import InputError
from laconic.profile.inputs.pipedream import parse, read
from laconic.values.layer_graph import Layer
from tests.data import folder_of


def _line(name: str, kind: str, forward: object = 1, out: object = 8, weights: object = 4) -> str:
    sizes = f"activation_size={out}, parameter_size={weights}"
    return f"{name} -- {kind} -- forward_compute_time={forward}, backward_compute_time=2.5, {sizes}"


def test_layers_are_sorted_by_edges_and_inputs_left_out() -> None:
    lines = [
        _line("node10", "Add(a, b)"),
        _line("node2", "Linear(in=3, out=4)", forward=1.5, out="[8.0; 16.0]"),
        _line("node1", "Input0"),
        _line("node3", "ReLU"),
        "\tnode1 -- node2",
        "\tnode2 -- node3",
        "\tnode2 -- node10",
        "\tnode3 -- node10",
    ]
    graph = parse("\n".join(lines))
    assert [layer.name for layer in graph.layers] == ["node2 Linear(in=3, out=4)", "node3 ReLU", "node10 Add(a, b)"]
    assert graph.layers[0] == Layer("node2 Linear(in=3, out=4)", 1.5e-3, 2.5e-3, 24.0, 4.0)
    assert graph.edges == {(0, 1), (0, 2), (1, 2)}
    assert graph.cut_bytes == [0, 24, 24 + 8, 0]


@pytest.mark.parametrize(("name", "layers"), [("vgg16", 40), ("resnet50", 176), ("gnmt", 45)])
def test_the_authors_profiles_are_read(name: str, layers: int) -> None:
    graph = read(folder_of("pipedream") / f"{name}.txt")
    assert len(graph.layers) == layers
    assert all(i < j for i, j in graph.edges)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("hello", "neither a layer nor an edge"),
        (_line("node1", "Input"), "holds no layer"),
        (_line("node1", "ReLU") + "\n\tnode1 -- node2", "node2, which is no layer"),
        (_line("node1", "ReLU", forward="x"), "no number"),
        (_line("node1", "ReLU", weights=-4), "no number"),
        ("node1 -- ReLU -- forward_compute_time=1", "has no backward_compute_time"),
        ("\n".join([_line("node1", "A"), _line("node2", "B"), "\tnode1 -- node2", "\tnode2 -- node1"]), "circle"),
    ],
)
def test_what_is_no_profile_is_refused_with_the_place(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        parse(text, "graph.txt")
