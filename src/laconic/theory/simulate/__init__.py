"""Reference simulations in NumPy, over many runs at once, to hold bounds against; engines train elsewhere."""
