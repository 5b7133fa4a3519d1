"""A service of attached jobs for benchmarks: on hosts that there are not, without Ray."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from runtime.journal.write import JOURNAL, is_begun
from runtime.service.address import SERVICE

_STARTS_S = 60.0


def write_cluster(file: Path, nodes: int, pools: dict[str, dict[str, Any]], **limits: Any) -> None:
    """Write a cluster file with so many nodes of each pool, each on a host of its own."""
    sized = {name: pool | {"max_nodes": nodes} for name, pool in pools.items()}
    hosts = {name: [f"{name}-host-{number}" for number in range(nodes)] for name in pools}
    file.write_text(json.dumps({"cluster": {**sized, **limits}, "hosts": hosts}))


def start(folder: Path, cluster: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start a service, or let the one that was here go on; it listens on return.

    Args:
        cluster: its file. output: to which it writes what it says, behind what is there.
    """
    place = folder / SERVICE
    place.unlink(missing_ok=True)
    command = [sys.executable, "-m", "rollmux", "serve", str(folder), "--no-ray", "--dispatch", "fifo"]
    command += [] if is_begun(folder / JOURNAL) else ["--cluster", str(cluster)]
    with open(output, "a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    until_s = time.monotonic() + _STARTS_S
    while not place.exists():
        if process.poll() is not None or time.monotonic() > until_s:
            process.kill()
            raise SystemExit(output.read_text()[-2000:])
        time.sleep(0.05)
    return process
