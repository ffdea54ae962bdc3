"""Other frameworks: a file for each."""
