"""One HTML page about runs, comparisons and plans, which opens anywhere without a server or a network."""
