"""Searches for hyper-parameters: groups of trials, how GPUs are divided among them, and trials that share work."""
