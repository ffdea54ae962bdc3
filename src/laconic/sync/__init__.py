"""Synchronisation rules: when workers communicate, what they exchange, and when they wait."""
