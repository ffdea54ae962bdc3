"""Numba and Triton are extras: without them everything is plain torch, and that is reported once."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, warnings
for name in {missing}:
    sys.modules[name] = None
import torch
from laconic import kernels
from laconic.kernels import messages, reference
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x, error = torch.randn(5000), torch.zeros(5000)
    for _ in range(3):
        message = kernels.encode_signs([x], [error.zero_()])
        kernels.bodies("cuda")
assert torch.equal(message, messages.encode_signs(reference, [x], [error.zero_()]))
assert ("numba" in {missing}) == (kernels.bodies("cpu").pack_signs is reference.pack_signs)
assert ("triton" in {missing}) == (not hasattr(kernels.bodies("cuda"), "encode_signs"))
print(*(str(warning.message) for warning in caught), sep="\\n")
"""


@pytest.mark.long
@pytest.mark.parametrize("missing", [("numba",), ("triton",), ("numba", "triton")])
def test_what_is_not_installed_is_reported_once_and_missed_nowhere(missing: tuple[str, ...]) -> None:
    if "triton" not in missing:
        pytest.importorskip("triton", reason="without Triton there are no bodies for GPUs")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(missing=missing)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not found.returncode, found.stderr
    lines = [line for line in found.stdout.splitlines() if line]
    assert len(lines) == len(missing)
    for name, extra in (("numba", "laconic[fast]"), ("triton", "laconic[gpu]")):
        assert sum(f"{name} is not installed (pip install '{extra}')" in line for line in lines) == missing.count(name)
