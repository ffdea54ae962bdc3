"""Jobs whose transfers share one network: who sends first, and at which rate."""
