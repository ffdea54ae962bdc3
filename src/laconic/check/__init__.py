"""Property checks of a technique, for its author: what holds, what does not, and the smallest counter-example."""
