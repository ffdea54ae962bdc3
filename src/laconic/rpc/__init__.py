"""Letters between workers and machines: each write exactly once and in order, whatever happens on the way."""
