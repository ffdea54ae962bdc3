"""`python -m laconic`."""

from __future__ import annotations

from laconic.cli.app import main

if __name__ == "__main__":
    main()
