"""Where the ranks of a job meet, and at which of a machine's addresses they listen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_LOOPBACK = "127.0.0.1"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def open_store(host: str) -> TCPStore:
    """The store of a job's ranks, at a port of this address alone; torch's own would listen at all addresses of the machine.

    It asks nobody who he is. The port is taken from now on, and the process group that this process joins shares the store.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
    port = server.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=server.detach())


def url_of(host: str, port: int) -> str:
    """The store's place, as `join_group` takes it."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def listen_near(rendezvous: str | None) -> None:
    """Let gloo and NCCL listen at the address by which this machine reaches the others, unless the user has chosen another one.

    Gloo would take the address of the machine's name, NCCL those of all networks.

    Args:
        rendezvous: as `join_group` takes it; without a host all ranks are on this machine, and nobody else has to reach them.
    """
    name = interface_of(_own_address(rendezvous))
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # this one, not all whose names begin so


def interface_of(address: str) -> str | None:
    """The network interface that has an address; None where it is not the first of any."""
    for _, name in socket.if_nameindex():
        if address in _addresses(name):
            return name
    return None


def _own_address(rendezvous: str | None) -> str:
    place = urlsplit(rendezvous or "")
    if place.scheme != "tcp" or place.hostname is None:
        return _LOOPBACK
    family, kind, protocol, _, there = socket.getaddrinfo(place.hostname, place.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(there)  # sends nothing: the kernel chooses the address that it would send from
        return str(probe.getsockname()[0])


def _addresses(interface: str) -> set[str]:
    """The first IPv4 address of an interface, and all of its IPv6 addresses."""
    addresses = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):  # it has none
        answer = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        addresses.add(socket.inet_ntoa(answer[20:24]))
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        address, *_, name = line.split()
        if name == interface:
            addresses.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address)))
    return addresses
