"""Multi-Instance GPU: a GPU cut into instances with compute and memory of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from laconic.cluster.sharing.throughput import Throughput
from laconic.errors import ClusterError
from laconic.registry import technique


class Profile(NamedTuple):
    """A size in which instances come.

    - `name`: as the vendor writes it.
    - `compute`: its compute slices.
    - `width`: its memory slices.
    - `starts`: the memory slices at which it may begin.
    """

    name: str
    compute: int
    width: int
    starts: tuple[int, ...]


class Instance(NamedTuple):
    """An instance: a profile at one of its places.

    - `profile`: its name.
    - `start`: its first memory slice.
    """

    profile: str
    start: int


@dataclass(frozen=True)
class Part:
    """A GPU that can be cut.

    - `profiles`: the sizes of its instances.
    - `compute`: its compute slices.
    - `memory`: its memory slices.
    - `slice_bytes`: the memory of one of these.
    - `reconfigure_seconds`: what creating or destroying an instance takes, during which the others run on.
    """

    profiles: tuple[Profile, ...]
    compute: int = 7
    memory: int = 8
    slice_bytes: float = 5e9
    reconfigure_seconds: float = 3.0

    def profile(self, name: str) -> Profile:
        """Return a profile by its name.

        - `name`: as the vendor writes it.
        """
        for found in self.profiles:
            if found.name == name:
                return found
        raise ClusterError(
            f'"{name}" is no profile of this GPU; write one of {", ".join(p.name for p in self.profiles)}'
        )


A100 = Part(
    (
        Profile("1g.5gb", 1, 1, (0, 1, 2, 3, 4, 5, 6)),
        Profile("2g.10gb", 2, 2, (0, 2, 4)),
        Profile("3g.20gb", 3, 4, (0, 4)),
        Profile("4g.20gb", 4, 4, (0,)),
        Profile("7g.40gb", 7, 8, (0,)),
    )
)
"""An A100 of 40 GB, without the profile that has media engines."""


@dataclass(frozen=True)
class Layout:
    """The instances of one GPU at one moment; a wrong one cannot be constructed. Nothing in it moves: what is freed in
    two places does not become one large instance.

    - `part`: the GPU.
    - `instances`: in order of their places.
    - `jobs`: who runs in which instance.
    """

    part: Part
    instances: tuple[Instance, ...] = ()
    jobs: tuple[tuple[Instance, str], ...] = ()

    def __post_init__(self) -> None:
        taken: set[int] = set()
        compute = 0
        for name, start in self.instances:
            profile = self.part.profile(name)
            if start not in profile.starts:
                raise ClusterError(f"an instance {name} cannot begin at memory slice {start}, only at {profile.starts}")
            slices = set(range(start, start + profile.width))
            if taken & slices:
                raise ClusterError(f"an instance {name} at memory slice {start} overlaps another")
            taken |= slices
            compute += profile.compute
        if compute > self.part.compute:
            raise ClusterError(f"these instances have {compute} compute slices, of which there are {self.part.compute}")
        used = [instance for instance, _ in self.jobs]
        if len(set(used)) < len(used) or not set(used) <= set(self.instances):
            raise ClusterError("every job of a GPU in instances runs in one instance that is there and is its own")

    def places(self, profile: str) -> Iterator[Layout]:
        """Yield this layout with one instance more, at each place where it fits.

        - `profile`: its name.
        """
        for start in self.part.profile(profile).starts:
            try:
                yield Layout(
                    self.part, tuple(sorted((*self.instances, Instance(profile, start)), key=_place)), self.jobs
                )
            except ClusterError:
                continue

    def destroy(self, instance: Instance) -> Layout:
        """Return the layout without an instance, which must be idle.

        - `instance`: one of this layout.
        """
        if instance in dict(self.jobs):
            raise ClusterError(
                f"{dict(self.jobs)[instance]} runs in {instance.profile}; wait until the instance is idle"
            )
        return Layout(self.part, tuple(kept for kept in self.instances if kept != instance), self.jobs)

    def run(self, instance: Instance, job: str) -> Layout:
        """Return the layout with a job in an instance that is idle.

        - `instance`: one of this layout.
        - `job`: its name.
        """
        return Layout(self.part, self.instances, (*self.jobs, (instance, job)))

    def end(self, job: str) -> Layout:
        """Return the layout after a job has ended; its instance stays.

        - `job`: its name.
        """
        return Layout(self.part, self.instances, tuple(kept for kept in self.jobs if kept[1] != job))

    @property
    def is_maximal(self) -> bool:
        """Whether no instance fits beside these."""
        return not any(True for profile in self.part.profiles for _ in self.places(profile.name))


def maximal_layouts(part: Part = A100) -> list[Layout]:
    """Return every layout to which no instance can be added.

    - `part`: the GPU.
    """
    seen: dict[tuple[Instance, ...], Layout] = {}
    ahead = [Layout(part)]
    while ahead:
        layout = ahead.pop()
        if layout.instances not in seen:
            seen[layout.instances] = layout
            ahead += [more for profile in part.profiles for more in layout.places(profile.name)]
    return [layout for layout in seen.values() if layout.is_maximal]


def _place(instance: Instance) -> int:
    return instance.start


@technique(
    "mig",
    axis="cluster",
    paper="NVIDIA, Multi-Instance GPU, 2020",
    evidence="modelled",
    holds="The table of an A100's instances and their places, and that neighbours do not change a job's rate.",
    why_no_word="It is a model of hardware, in whose instances jobs of any policy run.",
)
def rates(layout: Layout, profiles: Mapping[str, Throughput]) -> dict[str, float]:
    """Return how fast each job of a GPU cut into instances runs: as alone on its instance's share of the compute
    slices, whoever else is there.

    What they share all the same, the link to the host, is not modelled.

    - `layout`: the instances, and who runs in which.
    - `profiles`: each job's rate on a share of the whole GPU.
    """
    whole = layout.part.compute
    return {job: profiles[job].rate(layout.part.profile(place.profile).compute / whole) for place, job in layout.jobs}
