"""Policies that learn: one small network that scores actions, and policy gradients over replays."""
