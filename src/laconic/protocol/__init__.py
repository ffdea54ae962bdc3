"""Transport protocols, the fifth word of a sentence: the links over which messages are sent; none is registered yet."""
