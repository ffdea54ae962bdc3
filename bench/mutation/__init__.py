"""Mutation testing: break one thing in a technique, and see whether a test that runs it fails."""
