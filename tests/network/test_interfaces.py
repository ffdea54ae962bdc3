"""The interface is the one the kernel would use; nothing is sent, and no name service is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from laconic.errors import LaconicError
from laconic.network import interfaces as net

SOURCE = Path(__file__).parents[2] / "src"


def test_this_machine_is_reached_through_the_loopback() -> None:
    name = net.interface_towards("127.0.0.1")
    assert name == net.interface_towards("localhost")
    assert net.address_towards("127.0.0.1") == "127.0.0.1"
    assert any(i.name == name and i.address == "127.0.0.1" and i.is_up for i in net.interfaces())
    assert net.is_own("127.0.0.1") and net.resolves_to_loopback("localhost")


def test_an_unknown_host_is_refused_in_a_sentence() -> None:
    with pytest.raises(LaconicError, match=r"'no-such-host\.invalid' is not known here"):
        net.interface_towards("no-such-host.invalid")


def test_the_environment_is_prepared_but_the_users_choice_stands() -> None:
    environment: dict[str, str] = {}
    net.prepare_environment("127.0.0.1", environment)
    name = net.interface_towards("127.0.0.1")
    assert environment == {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    chosen = {"GLOO_SOCKET_IFNAME": "eth7"}
    net.prepare_environment("127.0.0.1", chosen)
    assert chosen == {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": name}


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace with two interfaces, of which one has three addresses; the loopback is down."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    name = f"lacif{os.getpid() % 100_000}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
    try:
        for command in (
            ("link", "add", "first", "type", "veth", "peer", "name", "other"),
            ("address", "add", "10.78.0.1/24", "dev", "first"),
            ("address", "add", "10.79.0.1/24", "dev", "other"),
            ("address", "add", "10.79.0.7/24", "dev", "other"),
            ("address", "add", "10.80.0.1/24", "dev", "other"),
            ("link", "set", "first", "up"),
            ("link", "set", "other", "up"),
        ):
            subprocess.run(["ip", "-n", name, *command], check=True, capture_output=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def inside(namespace: str, expression: str) -> str:
    code = f"from laconic.network import interfaces as net; print({expression})"
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.long
def test_a_namespace_without_loopback_or_names_is_no_obstacle(namespace: str) -> None:
    assert inside(namespace, "net.interface_towards('10.78.0.2')") == "first"
    assert inside(namespace, "net.interface_towards('10.79.0.2')") == "other"
    assert inside(namespace, "net.address_towards('10.79.0.2')") == "10.79.0.1"
    assert inside(namespace, "net.is_own('10.79.0.2')") == "False"
    assert "no network interface leads to '192.0.2.1'" in inside(namespace, "net.interface_towards('192.0.2.1')")


@pytest.mark.long
def test_a_second_address_of_an_interface_is_found(namespace: str) -> None:
    subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "up"], check=True)
    assert inside(namespace, "net.is_own('10.79.0.7')") == "True"
    assert inside(namespace, "net.interface_towards('10.79.0.7')") == "other"
    assert inside(namespace, "net.address_towards('10.80.0.9')") == "10.80.0.1"
    assert inside(namespace, "net.interface_towards('10.80.0.9')") == "other"
    assert "Interface(name='other', address='10.79.0.1', is_up=True)" in inside(namespace, "net.interfaces()")
