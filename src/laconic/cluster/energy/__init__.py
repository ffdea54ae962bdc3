"""Energy: clocks of GPUs, and jobs on few hosts that are not in a hurry."""
