"""Shaped networks: links of a chosen rate and delay on one host, made of namespaces, a bridge and token buckets.

    with shaped(workers=4, bits_per_second=1e8) as net:
        subprocess.run(net.places[0].command(["python", "train.py"]))

Nothing here touches the host's own network: every interface lives in a namespace made for it.
"""

from laconic.launch.net.kernel import ShapedNetworkError
from laconic.launch.net.manage import down, every, find, shaped, standing, up
from laconic.launch.net.network import ShapedNetwork, read_link
from laconic.launch.net.place import Namespace, interface_bytes
from laconic.launch.net.state import HUB_ADDRESS

__all__ = [
    "HUB_ADDRESS",
    "Namespace",
    "ShapedNetwork",
    "ShapedNetworkError",
    "down",
    "every",
    "find",
    "interface_bytes",
    "read_link",
    "shaped",
    "standing",
    "up",
]
