"""The virtual engine: N workers in one process, real gradients, a virtual clock and a network model."""
