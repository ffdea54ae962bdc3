"""`laconic compare`: several strategies of one script, side by side."""
