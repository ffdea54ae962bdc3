"""Trees packed into the links of a graph so that together they send as fast as any cut allows."""
