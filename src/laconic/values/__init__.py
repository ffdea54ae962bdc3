"""Plain values that every package may read: tensors, plans, profiles, prices, and the configuration of a run."""
