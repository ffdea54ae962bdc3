"""The groups along a mesh's dimensions, on virtual workers."""

from __future__ import annotations

import pytest

import laconic
from laconic.errors import ContractError
from laconic.parallel.device_groups import groups_of


def test_groups_and_places_along_dimensions() -> None:
    def device() -> None:
        mesh = laconic.init_device_mesh("cpu", (2, 3), mesh_dim_names=("ep", "cp"))
        first, second = divmod(laconic.rank(), 3)
        groups = groups_of(mesh)
        assert {name: group.ranks for name, group in groups.items()} == {
            "ep": (second, second + 3),
            "cp": tuple(range(3 * first, 3 * first + 3)),
        }
        assert (groups["ep"].rank, groups["cp"].rank) == (first, second)
        assert (mesh.get_local_rank("ep"), mesh.get_local_rank(1), mesh["cp"].get_local_rank()) == (
            first,
            second,
            second,
        )
        with pytest.raises(ContractError, match="name one"):
            mesh.get_local_rank()
        unnamed = laconic.init_device_mesh("cpu", (3, 2))
        assert list(groups_of(unnamed)) == ["0", "1"]

    laconic.simulate(device, 6)
