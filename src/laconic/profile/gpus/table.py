"""Accelerators as they are sold: the figures of their data sheets, and the host they usually come in.

Peaks are dense, without structured sparsity; 16-bit peaks accumulate in 32 bits where the chip makes a difference.
Prices are defaults that a user overrides: on-demand list prices per GPU and hour of the place named beside them, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from laconic.errors import LaconicError
from laconic.profile.name_lookup import pick

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One accelerator; the rate of its link is one way and for one GPU."""

    name: str
    fp32: float  # operations per second, two for each multiplication with its addition
    tf32: float | None
    half: float  # fp16 or bf16
    bf16: bool
    memory_bytes_per_second: float
    memory_bytes: float
    watts: float  # of the board
    per_machine: int
    link: str
    link_bytes_per_second: float
    dollars_per_hour: float | None
    priced_by: str = ""

    @property
    def usual_precision(self) -> Precision:
        """The precision in which most people train on it: 16 bits where there are units for them."""
        return "bf16" if self.bf16 else "fp16" if self.half > 4 * self.fp32 * 0.99 else "fp32"

    def peak(self, precision: Precision) -> float:
        """Return the peak in operations per second, or raise an error if the chip lacks the precision."""
        if precision not in get_args(Precision):
            raise LaconicError(f"no precision {precision!r}; write one of {', '.join(get_args(Precision))}")
        if (precision == "tf32" and self.tf32 is None) or (precision == "bf16" and not self.bf16):
            raise LaconicError(f"{self.name} has no units for {precision}; write fp32 or fp16")
        return {"fp32": self.fp32, "tf32": self.tf32 or 0.0, "fp16": self.half, "bf16": self.half}[precision]


def _gpu(
    name: str,
    tera: tuple[float, float | None, float],
    memory: tuple[float, int],
    watts: float,
    machine: tuple[int, str],
    price: tuple[float, str] | None,
    bf16: bool = True,
) -> Gpu:
    """Return a GPU from peaks in TFLOP/s (fp32, tf32, 16 bits) and memory in GB/s and GiB."""
    fp32, tf32, half = (None if t is None else t * 1e12 for t in tera)
    assert fp32 is not None and half is not None
    dollars, by = price or (None, "")
    rate, size = memory[0] * 1e9, memory[1] * GIB
    return Gpu(name, fp32, tf32, half, bf16, rate, size, watts, machine[0], machine[1], LINKS[machine[1]], dollars, by)


LINKS = {  # bytes per second one way of one GPU, after encoding
    "PCIe 3.0 x16": 15.75e9,
    "PCIe 4.0 x16": 31.5e9,
    "PCIe 5.0 x16": 63e9,
    "NVLink 2": 150e9,
    "NVLink 3": 300e9,
    "NVLink 4": 450e9,
    "NVLink 5": 900e9,
}

_TABLE = (
    _gpu("P100", (9.3, None, 18.7), (732, 16), 250, (4, "PCIe 3.0 x16"), (1.46, "Google Cloud"), bf16=False),
    _gpu("V100", (15.7, None, 125), (900, 16), 300, (8, "NVLink 2"), (3.06, "AWS p3"), bf16=False),
    _gpu("V100 32GB", (15.7, None, 125), (900, 32), 300, (8, "NVLink 2"), (3.90, "AWS p3dn"), bf16=False),
    _gpu("T4", (8.1, None, 65), (320, 16), 70, (4, "PCIe 3.0 x16"), (0.98, "AWS g4dn.12xlarge"), bf16=False),
    _gpu("RTX 2080 Ti", (13.45, None, 53.8), (616, 11), 250, (4, "PCIe 3.0 x16"), None, bf16=False),
    _gpu("Quadro RTX 8000", (16.3, None, 130.5), (672, 48), 260, (4, "PCIe 3.0 x16"), None, bf16=False),
    _gpu("RTX 3090", (35.6, 35.6, 71), (936, 24), 350, (4, "PCIe 4.0 x16"), None),
    _gpu("RTX 4090", (82.6, 82.6, 165.2), (1008, 24), 450, (4, "PCIe 4.0 x16"), None),
    _gpu("A10", (31.2, 62.5, 125), (600, 24), 150, (4, "PCIe 4.0 x16"), (0.75, "Lambda")),
    _gpu("A10G", (31.5, 35, 70), (600, 24), 300, (4, "PCIe 4.0 x16"), (1.42, "AWS g5.12xlarge")),
    _gpu("A6000", (38.7, 77.4, 154.8), (768, 48), 300, (4, "PCIe 4.0 x16"), (0.80, "Lambda")),
    _gpu("RTX 6000 Ada", (91.1, 182.1, 364.2), (960, 48), 300, (4, "PCIe 4.0 x16"), None),
    _gpu("A100 40GB PCIe", (19.5, 156, 312), (1555, 40), 250, (8, "PCIe 4.0 x16"), None),
    _gpu("A100 80GB PCIe", (19.5, 156, 312), (1935, 80), 300, (8, "PCIe 4.0 x16"), None),
    _gpu("A100 40GB", (19.5, 156, 312), (1555, 40), 400, (8, "NVLink 3"), (2.74, "AWS p4d")),
    _gpu("A100 80GB", (19.5, 156, 312), (2039, 80), 400, (8, "NVLink 3"), (3.43, "AWS p4de")),
    _gpu("L4", (30.3, 60.5, 121), (300, 24), 72, (8, "PCIe 4.0 x16"), (0.71, "Google Cloud g2")),
    _gpu("L40S", (91.6, 183, 362), (864, 48), 350, (8, "PCIe 4.0 x16"), (1.86, "AWS g6e")),
    _gpu("H100 PCIe", (51.2, 378, 756), (2039, 80), 350, (8, "PCIe 5.0 x16"), (2.49, "Lambda")),
    _gpu("H100 SXM", (66.9, 494.7, 989.4), (3350, 80), 700, (8, "NVLink 4"), (6.88, "AWS p5")),
    _gpu("H200", (66.9, 494.7, 989.4), (4800, 141), 700, (8, "NVLink 4"), (7.91, "AWS p5en")),
    _gpu("B200", (75, 1125, 2250), (8000, 180), 1000, (8, "NVLink 5"), (14.24, "AWS p6-b200")),
)
GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in _TABLE}
_ALIASES = {
    "a100": "A100 80GB",
    "a10080": "A100 80GB",
    "a10040": "A100 40GB",
    "a100sxm": "A100 80GB",
    "h10080gbhbm3": "H100 SXM",
    "p100pcie16gb": "P100",
    "h100": "H100 SXM",
    "2080ti": "RTX 2080 Ti",
    "3090": "RTX 3090",
    "4090": "RTX 4090",
    "rtxa6000": "A6000",
    "v10016gb": "V100",
    "v10032": "V100 32GB",
}


def gpu(name: str) -> Gpu:
    """Return an accelerator by its name; case, punctuation and the maker's name do not matter."""
    return GPUS[pick("GPU", name, GPUS, _ALIASES, noise=("nvidia", "geforce", "tesla", "sxm4", "sxm2"))]
