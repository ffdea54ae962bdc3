"""Models of one GPU that several jobs use: in space, in time, and its memory."""
