"""Convergence theory as calculators, and small simulations against which its bounds are tested."""
