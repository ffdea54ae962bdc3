"""Cost models computed from values alone: the time of one iteration, of a plan's messages, of collectives."""
