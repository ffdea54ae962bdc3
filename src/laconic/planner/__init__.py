"""Planning before a run: the predicted cost of each strategy for a model, its workers and their network."""
