"""The six steps through which every job goes, each of which can be replaced alone."""
