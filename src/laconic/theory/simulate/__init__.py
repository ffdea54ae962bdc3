"""Reference simulations in NumPy, over many runs at once, against which bounds are tested."""
