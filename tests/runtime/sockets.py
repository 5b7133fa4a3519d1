"""Where the processes of a Ray of ours listen."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.execution.own_ray import started_processes
from runtime.own_folder import OwnFolder


def listens_only_on_loopback(ray_folder: OwnFolder) -> bool:
    """Whether every listening TCP socket of a Ray's own processes is on 127.0.0.1 or ::1."""
    inodes = set()
    for pid in started_processes(ray_folder):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(entry))
            except OSError:
                continue
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and f"socket:[{columns[9]}]" in inodes:
                found.append(columns[1].rpartition(":")[0])
    assert found
    return set(found) <= loopback
