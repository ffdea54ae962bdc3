"""Whom workers tell: how a request is carried out over a group."""
