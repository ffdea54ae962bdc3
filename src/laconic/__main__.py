"""`python -m laconic`."""

from __future__ import annotations

from laconic.cli.app import command

if __name__ == "__main__":
    command()
