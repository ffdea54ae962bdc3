"""How long an iteration takes, seen from outside: the period of what a GPU draws and does."""

from __future__ import annotations

import numpy as np

from laconic.errors import ClusterError

ALIKE = 0.9  # of the best similarity: a shorter period that comes so near is the period
WINDOWS = 16  # periods that are compared with each other


def iteration_seconds(signals: np.ndarray, interval: float, candidates: int = 8) -> float:
    """Return the period of sampled signals. Each is brought to the same scale, and they are added; the Fourier
    transform gives frequencies, whose periods and small multiples are candidates; each is moved to where successive
    windows of its length are most similar, and of those the shortest is taken that is nearly as similar as any.

    - `signals`: a row each of power, utilisation and the like, sampled at the same times.
    - `interval`: the seconds between samples.
    - `candidates`: the frequencies that are looked at.
    """
    table = np.atleast_2d(np.asarray(signals, dtype=float))
    table = table - table.mean(axis=1, keepdims=True)
    spread = table.std(axis=1, keepdims=True)
    if not spread.max():
        raise ClusterError("signals that do not change have no period; sample a process that trains")
    signal = (table / np.where(spread > 0, spread, 1.0)).sum(axis=0)
    length = len(signal)
    power = np.abs(np.fft.rfft(signal * np.hanning(length))) ** 2
    found = list[tuple[float, float]]()
    for frequency in np.argsort(-power[1:], kind="stable")[:candidates].tolist():
        for multiple in range(1, 7):
            about, wide = multiple * length / (frequency + 1), max(0.03, 0.5 / (frequency + 1))
            if 4 <= about <= length / 3:
                tried = about * np.linspace(1 - wide, 1 + wide, 25)
                scores = [similarity(signal, float(period)) for period in tried]
                found.append((max(scores), float(tried[int(np.argmax(scores))])))
    if not found:
        raise ClusterError("the samples are too few for three periods; sample for longer")
    enough = ALIKE * max(score for score, _ in found)
    return interval * min(period for score, period in found if score >= enough)


def similarity(signal: np.ndarray, period: float) -> float:
    """Return the part of a signal's variance that is the same in successive windows, less what chance would give.

    - `signal`: samples.
    - `period`: the length of a window, in samples, which need not be whole.
    """
    bins = int(min(period, 24))
    chunk = int(min(WINDOWS * period, len(signal)))
    parts = list[float]()
    for begin in range(0, len(signal) - chunk + 1, chunk)[:8]:
        part = signal[begin : begin + chunk] - signal[begin : begin + chunk].mean()
        place = (np.arange(chunk) / period % 1.0 * bins).astype(np.int64)
        count = np.maximum(np.bincount(place, minlength=bins), 1)
        sums = np.bincount(place, weights=part, minlength=bins)
        within = float((part**2).sum() - (sums**2 / count).sum()) / max(chunk - bins, 1)
        parts.append(1 - within / max(float((part**2).sum()) / (chunk - 1), 1e-12))
    return float(np.mean(parts))
