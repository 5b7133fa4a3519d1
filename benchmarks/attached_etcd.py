"""An etcd that gives the same permits as a service: a lease with a time to live, and a transaction that takes a node with it.

Its gateway takes JSON over HTTP. So the benchmark's clients are the same as for a service, and nothing new has to be installed for
them. Debian's package is `etcd-server`.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from attached_connections import ConnectionPool

TTL_S = 30
_STARTS_S = 30.0


class EtcdJob:
    """Job that takes its nodes from an etcd.

    Args:
        asks: Connections to the etcd.
        job_id: Id of the job.
        token: Not used.
    """

    def __init__(self, asks: ConnectionPool, job_id: str, token: str = "") -> None:
        self._asks, self._id = asks, job_id
        self._lease = ""

    async def attach(self) -> int:
        """Take a lease, and return the status of the answer."""
        status, answer = await self._asks.ask("", "POST", "/v3/lease/grant", {"TTL": TTL_S})
        self._lease = answer.get("ID", "")
        return status

    async def acquire(self, phase: str, iteration: int) -> int:
        """Take the node of a phase with the lease if it is free. Returns the status of the answer, or 409 if it is not free."""
        key = self._key(phase)
        put = {"requestPut": {"key": key, "value": _text(str(iteration)), "lease": self._lease}}
        free = {"key": key, "target": "CREATE", "createRevision": "0", "result": "EQUAL"}
        status, answer = await self._asks.ask("", "POST", "/v3/kv/txn", {"compare": [free], "success": [put]})
        return status if status != 200 or answer.get("succeeded") else 409

    async def release(self, phase: str, iteration: int) -> int:
        """Release the node of a phase, and return the status of the answer."""
        status, _ = await self._asks.ask("", "POST", "/v3/kv/deleterange", {"key": self._key(phase)})
        return status

    async def beat(self) -> int:
        """Renew the lease, and return the status of the answer."""
        status, _ = await self._asks.ask("", "POST", "/v3/lease/keepalive", {"ID": self._lease})
        return status

    def _key(self, phase: str) -> str:
        return _text(f"nodes/{phase}/{self._id}")


def _text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def etcd_serving(folder: Path, program: str) -> Iterator[tuple[str, int]]:
    """Start an etcd in a folder, with its default durability, and stop it at the end of the block.

    Yields:
        URL and process id of the etcd.
    """
    own, peers = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
    urls = ["--listen-client-urls", own, "--advertise-client-urls", own, "--listen-peer-urls", peers]
    urls += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]
    with open(folder / "etcd.txt", "w") as output:
        process = subprocess.Popen([program, "--data-dir", str(folder / "etcd"), *urls], stdout=output, stderr=output)
    try:
        until_s = time.monotonic() + _STARTS_S
        while not _is_healthy(own):
            if process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit((folder / "etcd.txt").read_text()[-2000:])
            time.sleep(0.1)
        yield own, process.pid
    finally:
        process.terminate()
        process.wait()


def _is_healthy(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
        return b"true" in answer.read()
    return False
