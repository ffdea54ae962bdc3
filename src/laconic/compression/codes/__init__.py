"""Codes: whole numbers as bits, and back. Each is lossless, and knows how long it is."""
