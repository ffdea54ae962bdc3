"""What is decided or measured, as plain values that every room may read."""
