"""Where the processes of a Ray of ours listen, and what they answer to somebody who has no token."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterable
from pathlib import Path

import grpc  # type: ignore[import-untyped]

from runtime.machines.own_ray import started_processes
from runtime.own_folder import OwnFolder

Address = tuple[str, int]
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
CALLS = (  # one of each of Ray's services
    "InternalKVGcsService/InternalKVGet",
    "NodeManagerService/GetNodeStats",
    "ObjectManagerService/Pull",
    "CoreWorkerService/GetCoreWorkerStats",
    "RayletDriver/KVGet",
)


def listening(pids: Iterable[int]) -> list[Address]:
    """The listening TCP sockets of processes."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(entry))
            except OSError:
                continue
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and f"socket:[{columns[9]}]" in inodes:
                found.append(_address(columns[1]))
    return found


def listens_only_on_loopback(ray_folder: OwnFolder) -> bool:
    """Whether every listening TCP socket of a Ray's own processes is on loopback."""
    hosts = {host for host, _ in listening(started_processes(ray_folder))}
    return bool(hosts) and hosts <= set(LOOPBACK)


def answer_without_token(address: Address) -> str:
    """What is answered to somebody who has no token: a status of gRPC by name, or one of HTTP."""
    host, port = address
    with grpc.insecure_channel(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") as channel:
        for call in CALLS:
            try:
                channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=60)
            except grpc.RpcError as error:
                if error.code().name not in ("UNIMPLEMENTED", "UNAVAILABLE"):
                    return str(error.code().name)
            else:
                return "OK"
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("GET", "/")
    status = connection.getresponse().status
    connection.close()
    return str(status)


def _address(entry: str) -> Address:
    """As the kernel's tables write it: words of four bytes in the order of the machine."""
    host, _, port = entry.partition(":")
    data = b"".join(bytes.fromhex(host[k : k + 8])[::-1] for k in range(0, len(host), 8))
    return socket.inet_ntop(socket.AF_INET6 if len(data) > 4 else socket.AF_INET, data), int(port, 16)
