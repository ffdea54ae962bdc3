"""The low-communication frontier: loss from measured trainings, bytes from the ledger, and time from the clock."""
