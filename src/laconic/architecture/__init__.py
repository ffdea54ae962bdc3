"""Architectures: how the requests of a compressor are carried out among workers or through servers."""
