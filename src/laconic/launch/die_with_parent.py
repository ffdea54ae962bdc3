"""Start a command that ends when its launcher does, even when the launcher is killed.

    python die_with_parent.py LAUNCHER COMMAND…

This script uses only the standard library. It asks the kernel for a signal at the death of its parent (the process with
the number LAUNCHER), and then executes the command in its place; so the command need not know of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, then become the command."""
    launcher, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(launcher):  # it died before the kernel was asked
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
