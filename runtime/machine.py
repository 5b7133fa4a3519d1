"""The nodes of a run, and which machine a process is on, as far as clocks and memory are shared, and what that takes from it."""

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
_MUCH = 0.1  # of a phase's seconds
_LEAST_WAIT_S = 0.1  # less is what any process waits now and then
_MOST_THREADS = 16  # of a CPU node's processes; more do not help the models that run on CPUs

Pool = PoolName


@dataclass(frozen=True)
class Node:
    """A node as the runtime pins to it.

    Attributes:
        name: `rollout-0`, `training-1`, ...: unique, by pool.
        pool: which of the two it belongs to.
        machine: id of the Ray node that it is, or is a part of.
        cores: CPU cores that it owns. gpus: its GPUs on that machine, none on a CPU: indices, or the names in the
            CUDA_VISIBLE_DEVICES of the coordinator, where that restricts it.
        memory_gb: its share of the machine's host memory, GB.
        device: what it computes on, as a profile is cached by it: the GPU's or the CPU's model and the number of them.
        host: name of that machine.
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
        """What of it a process computes on: its GPUs, or its cores where it has none."""
        return self.gpus or self.cores


def boot_id() -> str:
    """What says that two processes share a clock: an id of this machine's uptime."""
    return _BOOT.read_text() if _BOOT.exists() else os.uname().nodename


def core_wait_s() -> float:
    """Seconds in which this thread was ready to run and had no core, since it began; 0 where nobody counts them."""
    try:
        return int(_SCHEDULER.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def lacked_core(waited_s: float, seconds: float) -> bool:
    """Whether a phase was without a core for so long that its seconds say little about it.

    Args:
        waited_s: seconds that it was ready to run and had none. seconds: that it took.
    """
    return waited_s > max(_LEAST_WAIT_S, _MUCH * seconds)


@cache
def memory_id() -> bytes:
    """What says that two processes see each other in /proc by the same numbers: 16 bytes; empty where there is no telling.

    Containers of one machine have a boot id in common, and each its own process ids.
    """
    try:
        return hashlib.sha256(f"{_BOOT.read_text()} {os.readlink(_NAMESPACE)}".encode()).digest()[:16]
    except OSError:
        return b""


def threads_of(*cores: Sequence[int]) -> int:
    """Threads of a process that owns the cores of some nodes: one a core."""
    return max(1, min(_MOST_THREADS, len({*chain(*cores)})))
