"""The composition root: `distribute` picks a worker, a runtime and an autotuner, and joins them."""
