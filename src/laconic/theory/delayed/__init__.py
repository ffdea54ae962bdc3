"""Bounds of methods that apply late gradients: asynchronous SGD and its relatives."""
