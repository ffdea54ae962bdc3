"""Lossless codes from whole numbers to bits and back, each of which knows its length."""
