"""The strategies that a loss budget admits by measured losses, among which `auto` may choose."""

from __future__ import annotations

from laconic.planner.candidates import chains
from laconic.planner.risk import risk_of

PERIODS = (2, 4, 8, 16)


def strategies_within(loss_budget: float, workers: int) -> list[str]:
    """Return the strategies whose measured loss rises by at most the budget, at the upper end of its interval."""
    known = chains()
    asked = [f"bsp / {chain} / allreduce / auto(false)" for chain in known if chain != "none"]
    asked += [f"local({period}) / {chain} / allreduce" for period in PERIODS for chain in known]
    risks = {text: risk_of(text, workers) for text in asked}
    return [text for text, risk in risks.items() if risk is not None and risk.high - 1 <= loss_budget]
