"""Rules of federated learning, one to a file."""
