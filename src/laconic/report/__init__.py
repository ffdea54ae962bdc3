"""Output for people: tables in the terminal, plots and HTML pages; the same numbers as JSON or CSV for programs."""
