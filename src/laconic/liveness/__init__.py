"""Detection of lost ranks: heartbeats in the run's store, which every rank evaluates for itself."""
