"""Service of attached jobs for benchmarks. Its hosts do not exist, and it needs no Ray."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.journal.write import JOURNAL, is_begun
from runtime.service.address import SERVICE

_STARTS_S = 60.0


def write_cluster(file: Path, nodes: int, pools: dict[str, dict[str, Any]], **limits: Any) -> None:
    """Write a cluster file with `nodes` nodes in each pool, each on a separate host.

    Args:
        file: File to write.
        nodes: Number of nodes in each pool.
        pools: Settings of each pool, by its name.
        **limits: Further settings of the cluster.
    """
    sized = {name: pool | {"max_nodes": nodes} for name, pool in pools.items()}
    hosts = {name: [f"{name}-host-{number}" for number in range(nodes)] for name in pools}
    file.write_text(json.dumps({"cluster": {**sized, **limits}, "hosts": hosts}))


def start(folder: Path, cluster: Path, output: Path, options: Sequence[str] = ("--dispatch", "fifo")) -> subprocess.Popen[bytes]:
    """Start a service, or let the previous one in the folder continue. It accepts connections when the function returns.

    Args:
        folder: Folder of the service.
        cluster: Cluster file.
        output: File to which the service's output is appended.
        options: Further options of a new service.
    """
    place = folder / SERVICE
    place.unlink(missing_ok=True)
    command = [sys.executable, "-m", "rollmux", "serve", str(folder), "--no-ray"]
    command += [] if is_begun(folder / JOURNAL) else ["--cluster", str(cluster), *options]
    with open(output, "a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    until_s = time.monotonic() + _STARTS_S
    while not place.exists():
        if process.poll() is not None or time.monotonic() > until_s:
            process.kill()
            raise SystemExit(output.read_text()[-2000:])
        time.sleep(0.05)
    return process
