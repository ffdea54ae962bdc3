"""Tables, plots and pages: what a person reads."""
