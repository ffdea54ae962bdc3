"""Pipelines that go on when workers leave and join: who does what is decided by functions of plain values."""
