"""Federated learning: populations of clients, rounds, and the rules by which they learn together."""
