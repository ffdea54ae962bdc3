"""Models of which every worker holds a part."""
