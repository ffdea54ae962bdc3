"""`laconic profile`: measure a script in a profiling run, or return the cached profile of an earlier one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from laconic.errors import LaconicError
from laconic.files import replacing
from laconic.launch.launch import launch
from laconic.launch.net.state import load
from laconic.launch.request import Request
from laconic.profile.cache import ProfileKey, make_cache_folder
from laconic.values.profile import Profile, ProfileError


def measure(
    command: tuple[str, ...],
    workers: int,
    net: str | None = None,
    steps: int = 48,
    threads: int = 1,
    out: str | None = None,
    fresh: bool = False,
    play: int | None = None,
    words: Sequence[str] | None = None,
) -> Path:
    """Return the path of a script's profile, measured if need be: `out`, or its path in the cache.

    With `play`, the workers stand for a run of so many workers, whose links cannot be measured here. `words` are the
    compression chains to time, in place of every registered compressor.
    """
    request = Request(command, workers=workers, net=net, threads=threads, profile_as=play, profile_words=words)
    state = None if net is None else load(net)
    subject = ProfileKey(
        Path(command[0]),
        command[1:],
        workers,
        threads,
        () if state is None else state.bits_per_second[:workers],
        0.0 if state is None else state.delay_seconds,
        steps,
        play,
        None if words is None else tuple(words),
    )
    cached = subject.path
    if fresh or not _is_whole(cached):
        _run_profiling(request, steps, cached)
    if out is None:
        return cached
    with replacing(Path(out)) as beside:
        shutil.copyfile(cached, beside)
    return Path(out)


def _is_whole(cached: Path) -> bool:
    """Return whether the cache holds this profile; one that was damaged is measured again."""
    try:
        Profile.read(cached)
    except ProfileError:
        return False
    return True


def _run_profiling(request: Request, steps: int, path: Path) -> None:
    if steps < 1:
        raise LaconicError(f"--steps {steps} makes no sense: a median needs at least one step, and more is better")
    make_cache_folder(path.parent)
    folder = Path(tempfile.mkdtemp(prefix="laconic-profile-"))
    measured = folder / "profile.json"
    try:
        code = launch(
            replace(request, folder=str(folder), heartbeat_seconds=60.0, profile_to=str(measured), profile_steps=steps)
        )
    except BaseException:
        shutil.rmtree(folder)
        raise
    if code:  # the folder stays, since the report of the run names its logs
        raise LaconicError(
            f"the profiling run ended with exit code {code}: the script's own output is above, and in {folder / 'logs'}"
        )
    found = measured.is_file()
    if found:
        with replacing(path) as beside:
            shutil.copyfile(measured, beside)
    shutil.rmtree(folder)
    if not found:
        raise LaconicError(
            f"the script ended before it had taken {steps} steps, so there is no profile: let it train for longer, "
            "or ask for fewer --steps"
        )
