"""Optimizers for large batches: layer-wise rates, as plain `torch.optim.Optimizer`s that any sentence distributes."""

from laconic.optim.lamb import LAMB
from laconic.optim.lars import LARS

__all__ = ["LAMB", "LARS"]
