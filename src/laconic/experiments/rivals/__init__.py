"""Rivals: other libraries' methods run on the user's unchanged script, so that a comparison can include them."""
