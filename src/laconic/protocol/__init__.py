"""Over which links."""
