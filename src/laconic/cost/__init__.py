"""What a step takes, computed from values alone: one iteration, the messages of a plan, collectives on a network."""
