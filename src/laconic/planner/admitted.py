"""Which strategies a budget for loss admits, by what was measured: what a run that chooses for itself may take."""

from __future__ import annotations

from laconic.planner.candidates import chains
from laconic.planner.risk import risk_of

PERIODS = (2, 4, 8, 16)


def within(loss_budget: float, workers: int) -> list[str]:
    """Those whose loss was measured to rise by no more, at the interval's far end."""
    known = chains()
    asked = [f"bsp / {chain} / allreduce / auto(false)" for chain in known if chain != "none"]
    asked += [f"local({period}) / {chain} / allreduce" for period in PERIODS for chain in known]
    risks = {text: risk_of(text, workers) for text in asked}
    return [text for text, risk in risks.items() if risk is not None and risk.high - 1 <= loss_budget]
