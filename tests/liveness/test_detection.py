"""Which ranks count as lost by an observer's own clock: plain values, no processes."""

from __future__ import annotations

import json
import signal

import pytest

from laconic.liveness.detection import (
    SILENT,
    START_SECONDS,
    Beat,
    Judge,
    Lost,
    describe_exit,
    interval,
    name_ranks,
    silence_limit,
)


class Observer:
    """A judge of four ranks, itself rank 0, at a limit of 10 s, whose clock the test advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self.counts = [1, 1, 1, 1]
        self.done = [False] * 4
        self.judge = Judge(4, 0, limit_seconds=10, interval_seconds=1, now=0.0)

    def after(self, seconds: float, beating: tuple[int, ...] = (0, 1, 2, 3)) -> Lost | None:
        """Let time pass in steps of a second, and return the first loss seen."""
        for _ in range(int(seconds)):
            self.now += 1
            for rank in beating:
                self.counts[rank] += 1
            lost = self.look()
            if lost is not None:
                return lost
        return None

    def look(self) -> Lost | None:
        hosts = ("here", "here", "there", "there")
        beats = [Beat(n, m, d) for n, m, d in zip(self.counts, hosts, self.done, strict=True)]
        return self.judge.look(beats, self.now)


def test_nobody_is_lost_while_all_beat() -> None:
    assert Observer().after(1000) is None


def test_a_silent_rank_is_lost_within_the_limit_and_not_much_before() -> None:
    observer = Observer()
    observer.after(5)
    lost = observer.after(20, beating=(0, 1, 3))
    assert lost is not None and lost.ranks == (2,) and lost.machine == "there"
    assert 8 < observer.now - 5 <= 10


def test_ranks_of_one_host_are_named_together() -> None:
    observer = Observer()
    observer.after(5)
    observer.after(1, beating=(0, 1, 3))  # rank 3 beats a second longer than rank 2
    lost = observer.after(20, beating=(0, 1))
    assert lost is not None and lost.ranks == (2, 3)
    assert lost.sentence().startswith("ranks 2 and 3 on there were lost: ")


def test_a_rank_that_finished_may_be_silent_for_ever() -> None:
    observer = Observer()
    observer.done[2] = True
    assert observer.after(1000, beating=(0, 1, 3)) is None


def test_a_rank_that_never_started_is_given_the_time_to_start() -> None:
    observer = Observer()
    observer.counts[3] = 0
    lost = observer.after(START_SECONDS + 5, beating=(0, 1, 2))
    assert lost is not None and lost.ranks == (3,) and "first heartbeat" in lost.cause
    assert observer.now > START_SECONDS


def test_an_observer_that_was_frozen_itself_reports_no_loss() -> None:
    observer = Observer()
    observer.after(5)
    observer.now += 3600
    assert observer.look() is None
    assert observer.after(5) is None


def test_an_observer_that_always_looks_late_still_notices() -> None:
    observer = Observer()
    observer.after(5)
    for _ in range(100):
        observer.now += 8
        for rank in (0, 1, 3):
            observer.counts[rank] += 1
        if observer.look() is not None:
            return
    raise AssertionError("a frozen rank was never noticed")


def test_beats_and_losses_survive_the_store() -> None:
    for beat in (Beat(7, "vm (10.0.0.1)"), Beat(1, "a machine", done=True)):
        assert Beat.decode(beat.encode().encode()) == beat
    assert Beat.decode(SILENT).count == 0
    lost = Lost((1, 2), "vm", "a cause", "an advice", final=True)
    assert Lost.decode(lost.encode()) == lost
    assert json.loads(lost.encode())["ranks"] == [1, 2]


@pytest.mark.parametrize("limit_seconds", [1.0, 3.0, 20.0, 300.0])
def test_detection_fits_into_the_limit(limit_seconds: float) -> None:
    step = interval(limit_seconds)
    assert 0 < step <= 1.0
    assert silence_limit(limit_seconds, step) + 2 * step <= limit_seconds  # seen a beat late, looked a beat late
    assert silence_limit(limit_seconds, step) >= 0.8 * limit_seconds - 1e-9


def test_exit_codes_are_described_in_words() -> None:
    assert "SIGKILL" in describe_exit(-signal.SIGKILL)[0] and "memory" in describe_exit(-signal.SIGKILL)[1]
    assert "SIGSEGV" in describe_exit(-signal.SIGSEGV)[0]
    assert "exit code 3" in describe_exit(3)[0]
    assert "signal 63" in describe_exit(-63)[0]


def test_ranks_are_named_as_people_do() -> None:
    named = [name_ranks(ranks) for ranks in ((), (3,), (0, 3), (4, 5, 6, 7), (1, 2, 4))]
    assert named == ["", "rank 3", "ranks 0 and 3", "ranks 4 to 7", "ranks 1, 2 and 4"]
