"""The nodes of a run, and facts about the machine of a process: its clock, its process ids, its cores."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from rollmux_env.scheduler.nodes import PoolName

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_SCHEDULER = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, nanoseconds ready without one, times on one
_MUCH = 0.1  # share of a phase's seconds without a core that counts as much
_LEAST_WAIT_S = 0.1  # shorter waits are usual for any process
_MOST_THREADS = 16  # threads of a CPU node's process; more do not speed up the models that run on CPUs

Pool = PoolName


@dataclass(frozen=True)
class Node:
    """A node as the runtime pins processes to it.

    Attributes:
        name: Unique name, such as `rollout-0` or `training-1`.
        pool: Pool of the node.
        machine: Id of the Ray node that it is, or is a part of.
        cores: CPU cores of the node.
        gpus: GPUs of the node on that machine, empty on a CPU: indices, or names in the coordinator's CUDA_VISIBLE_DEVICES if that
            is set.
        memory_gb: Share of the machine's host memory, in GB.
        device: Device type by which profiles are cached: model of the GPU or CPU, and their number.
        host: Name of the machine.
    """

    name: str
    pool: Pool
    machine: str
    cores: tuple[int, ...]
    gpus: tuple[int | str, ...]
    memory_gb: float
    device: str
    host: str = ""

    @property
    def devices(self) -> tuple[int | str, ...]:
        """The devices on which a process computes: the GPUs, or the cores if there are none."""
        return self.gpus or self.cores


def boot_id() -> str:
    """Return an id of this machine's uptime: processes with the same id share a clock."""
    return _BOOT.read_text() if _BOOT.exists() else os.uname().nodename


def core_wait_s() -> float:
    """Return the seconds in which this thread was ready to run and had no core since it began, or 0 if unknown."""
    try:
        return int(_SCHEDULER.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def lacked_core(waited_s: float, seconds: float) -> bool:
    """Return whether a phase waited for cores so long that its duration says little about it.

    Args:
        waited_s: Seconds in which it was ready to run and had no core.
        seconds: Duration of the phase, in seconds.
    """
    return waited_s > max(_LEAST_WAIT_S, _MUCH * seconds)


@cache
def memory_id() -> bytes:
    """Return 16 bytes that identify a boot and a process-id namespace, or empty bytes if unknown.

    Processes with the same value see each other in /proc under the same ids. Containers of one machine share a boot id, and each
    has its own process ids.
    """
    try:
        return hashlib.sha256(f"{_BOOT.read_text()} {os.readlink(_NAMESPACE)}".encode()).digest()[:16]
    except OSError:
        return b""


def threads_of(*cores: Sequence[int]) -> int:
    """Return the number of threads of a process that owns the cores of some nodes: one per core, up to a limit."""
    return max(1, min(_MOST_THREADS, len({*chain(*cores)})))
