"""Write docs/federated_cifar.md from the rows of bench/federated_cifar.py.

python docs/federated_cifar.py            # write
python docs/federated_cifar.py --check    # exit code 1 where the page is not what it would write
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.clients.tables import tables  # noqa: E402
from bench.packed import lines  # noqa: E402
from docs.pages import filled, keep  # noqa: E402

PAGE = ROOT / "docs" / "federated_cifar.md"
ROWS = ROOT / "docs" / "measured" / "federated-cifar.jsonl"
HEAD = "# Federated rules on CIFAR-10"
ABOUT = (
    "Written by `python docs/federated_cifar.py` from `docs/measured/federated-cifar.jsonl`, where every training "
    "is a line with its curve, device, seed, command and commit. `python bench/federated_cifar.py` makes the rows "
    "and goes on where it was; `bench/clients/methods.py` names methods, rates and knobs.",
    "100 virtual clients hold the 50,000 images: labels are divided by Dirichlet draws of concentration 0.1 or "
    "0.5, or two pieces of the images sorted by label to a client. Those that are selected go once through their "
    "images in batches of 50, half of them mirrored, by plain SGD. The network has three convolutions with group "
    "normalisation and 67 thousand parameters: small, so that a table of many runs is affordable, and far from "
    "what CIFAR-10 allows. The partition, the first parameters, the clients of every round and their speeds are "
    "draws of the seed, so that methods are compared in pairs.",
    "Every method has the same rates to choose from, and then up to three values of its own knob, on a seed "
    "that is not reported, in a fifth of the rounds, by 2,000 test images that judge nothing else. The two best rates "
    "are tried once more in all rounds, since short runs favour lower rates where labels are skewed. Accuracy is "
    "the mean of the last five evaluations of thirty, on the other 8,000; in brackets, seed by seed. Differences "
    "are paired by seed, with a 95 % interval of Student's t, which two or three seeds leave wide; bold ones "
    "exclude zero.",
    "The target is 95 % of what FedAvg reaches in the same setting. Bytes are payloads of all clients, both ways; "
    "where the way down is compressed, what a client that missed rounds is sent to catch up is among them. Hours "
    "are those of the virtual clock: the middle client trains on 100 images a second, receives 20 Mbit/s and "
    "sends 5, each with a log-normal spread of 1. `fedbuff` keeps three times as many clients at work as make a "
    "step. With 1 % taking part, a round has one client. What has no line yet has not been trained: `stc`, `apf` "
    "among ten silos (it needs all clients in every round), and settings and seeds beyond those shown.",
)


def page() -> str:
    """Return the whole page."""
    said = map(filled, ABOUT)
    found = list(tables(lines(ROWS))) or ["No rows have been measured yet."]
    return "\n\n".join([HEAD, *said, *found]) + "\n"


def written() -> dict[Path, str]:
    """Return the page that this command writes, with its text."""
    return {PAGE: page()}


if __name__ == "__main__":
    sys.exit(keep(__doc__, written()))
