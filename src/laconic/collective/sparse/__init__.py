"""Sums of vectors that are mostly zero: what is not zero is sent, and dense vectors where those are shorter."""
