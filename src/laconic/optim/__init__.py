"""Optimizers for large batches and rare averaging, as plain `torch.optim.Optimizer`s that any sentence distributes."""

from laconic.optim.lamb import LAMB
from laconic.optim.lars import LARS
from laconic.optim.muon import Muon, matrices_apart

__all__ = ["LAMB", "LARS", "Muon", "matrices_apart"]
