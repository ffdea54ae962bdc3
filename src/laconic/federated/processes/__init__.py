"""Federated learning between processes: a server of its own, and clients that may vanish and come back."""
