"""The picture of who holds what."""

from __future__ import annotations

import re

import numpy as np
import pytest

from laconic.federated.partition import by_label
from laconic.report.page.federated import MOST_CLIENTS, NARROW, WIDE, shards_section


@pytest.mark.parametrize(("clients", "seed"), [(12, 0), (300, 1)])
def test_a_circle_has_the_area_of_a_clients_samples_of_a_label(clients: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 10, 3000)
    counts = by_label(labels, clients, 2, seed).counts(labels)
    text = shards_section(counts)
    drawn = sum(int((counts[: MOST_CLIENTS[width]] > 0).sum()) for width in (WIDE, NARROW))
    assert text.count("<circle") == drawn
    tips = re.findall(r'<circle[^>]* r="([0-9.]+)"[^>]*><title>client (\d+): (\d+) of label (\d+)</title>', text)
    assert len(tips) == int((counts[: MOST_CLIENTS[WIDE]] > 0).sum())  # a phone's picture has no tips
    areas = [float(radius) ** 2 / int(samples) for radius, _, samples, _ in tips]
    assert max(areas) / min(areas) < 1.1  # radii are written with few digits
    assert all(counts[int(client), int(label)] == int(samples) for _, client, samples, label in tips)
    assert (f"{clients - MOST_CLIENTS[WIDE]:,} more clients are left out" in text) == (clients > MOST_CLIENTS[WIDE])
