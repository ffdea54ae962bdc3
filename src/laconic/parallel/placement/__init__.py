"""Which device of a slow and unequal network computes which stage for which part of the data."""
