"""Who is alive: beats in the run's store, judged by every rank for itself."""
