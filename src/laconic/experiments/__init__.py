"""Comparisons of strategies: `laconic compare` and `laconic ablate` run a script with several strategies."""
