"""Elastic averaging: rounds among members that may die in any phase, over actor messages, without a process group."""
