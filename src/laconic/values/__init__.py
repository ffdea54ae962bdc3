"""What is decided or measured, as plain values that every package may read."""
