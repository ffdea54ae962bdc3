"""The delay line: a process that forwards frames between pairs of taps, each after a fixed delay.

    python delay_line.py MARK SECONDS [[[NAMESPACE, TAP], [NAMESPACE, TAP]], …]

It imports the standard library alone, nothing of this package, so that it starts quickly. Frames carry the kernel's
offloading header, so that TCP segments of 64 KiB cross in one piece: a few thousand reads carry a gigabit. The process
ends when its standard input is closed, unless a line there has asked it to keep running; the taps end with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_OFFLOADS = 0x01 | 0x02 | 0x04 | 0x08  # checksums, and TCP segments of IPv4, IPv6 and with congestion marks
_FRAME_BYTES = 10 + 18 + 65536
_BURST = 32  # frames read from one tap before the next is served
_PR_SET_TIMERSLACK = 29


def main() -> None:
    """Open the taps named on the command line, print `ready` and forward frames until the end."""
    seconds, cables = float(sys.argv[2]), json.loads(sys.argv[3])
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    with suppress(OSError):  # on time even while the workers keep every core busy
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        pairs = [[_open_tap(library, *end) for end in cable] for cable in cables]
    except OSError as error:
        print(f"{error.filename or 'a tap'}: {error.strerror}", flush=True)
        sys.exit(1)
    print("ready", flush=True)
    forward({here: there for a, b in pairs for here, there in ((a, b), (b, a))}, seconds)


def forward(other_end: dict[int, int], seconds: float) -> None:
    """Write every frame to the other end `seconds` after it was read; one delay for all makes a single queue enough."""
    held: deque[tuple[float, int, bytes]] = deque()
    control = sys.stdin.fileno()
    sources = [*other_end, control]
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        for source in select.select(sources, [], [], wait)[0]:
            if source == control:
                if not os.read(control, 16):
                    return
                sources.remove(control)
                continue
            target = other_end[source]
            with suppress(BlockingIOError):
                for _ in range(_BURST):
                    held.append((time.monotonic() + seconds, target, os.read(source, _FRAME_BYTES)))
        now = time.monotonic()
        while held and held[0][0] <= now:
            _, target, frame = held.popleft()
            with suppress(OSError):  # that end is unplugged: the frame is lost
                os.write(target, frame)


def _open_tap(library: ctypes.CDLL, namespace: str, name: str) -> int:
    inside = os.open(namespace, os.O_RDONLY)
    if library.setns(inside, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), namespace)
    os.close(inside)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _OFFLOADS)
    return tap


if __name__ == "__main__":
    main()
