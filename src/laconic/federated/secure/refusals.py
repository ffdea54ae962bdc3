"""Why a session of secure aggregation goes no further."""

from __future__ import annotations

from laconic.errors import LaconicError


class Refused(LaconicError, ValueError):
    """A message that is malformed, of another session, out of order or sent again; nothing was changed by it."""


class TooFewClients(LaconicError, RuntimeError):
    """Fewer clients than the threshold are left: the session ends, and nothing of what was sent can be unmasked."""
