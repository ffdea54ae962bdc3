"""In which shape the links lie."""
