"""Context parallelism: sequences that are cut among devices."""
