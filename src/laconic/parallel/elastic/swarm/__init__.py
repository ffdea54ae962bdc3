"""SWARM: stages that are served by many unequal peers, of which any may leave at any time."""
