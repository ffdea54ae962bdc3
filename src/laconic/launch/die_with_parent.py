"""Start a command that ends when its launcher does, also when that is killed without a word.

    python leash.py LAUNCHER COMMAND…

It runs by itself (only the standard library), asks the kernel for a signal at the parent's death, and becomes the
command; so the command need not know of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    launcher, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(launcher):  # it died before the kernel was asked
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
