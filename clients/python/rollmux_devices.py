"""Measures the memory of a job's processes on the GPUs of this machine with NVML, including contexts and communicators.

Needs pynvml (`pip install nvidia-ml-py`). If it is missing, or NVML shows no process of the job, as in a container with its own
process ids, the service uses the memory stated in the job file, and one line is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import rollmux_client
import rollmux_processes

__all__ = ["device_gb", "report"]

_LOG = logging.getLogger("rollmux_client")
_said: list[str] = []


def report(job: rollmux_client.Job, turn: rollmux_client.PhaseContext) -> None:
    """Store in a turn, before it is released, how much memory the job keeps on the turn's GPUs on this machine."""
    if job.lease is None:
        return
    sides = [turn.name] if turn.name in job.nodes else [*job.nodes]
    here = [node for side in sides for node in job.nodes[side] if rollmux_processes.same_host(node["host"], job.host)]
    gpus = {gpu for node in here for gpu in node["gpus"]}
    if gpus:
        turn.device_gb = device_gb(job.pids(), gpus)


def device_gb(pids: Collection[int], gpus: Collection[int | str]) -> float | None:
    """Return the memory of some processes on the GPU where they have the most, in GB, or None if NVML does not tell.

    Args:
        pids: Ids of the processes.
        gpus: Indices or UUIDs of the GPUs.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            shown = [_used(_handle(pynvml, gpu), pids) for gpu in gpus]
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # NVML's own errors too, as of a GPU that a container does not see
        _say(str(error))
        return None
    if not any(shown):
        _say("it shows no process of the job")
        return None
    return max(map(sum, shown)) / 1e9


def _handle(pynvml: Any, gpu: int | str) -> Any:
    """Return NVML's handle of a GPU, by index or UUID. NVML ignores CUDA_VISIBLE_DEVICES."""
    return pynvml.nvmlDeviceGetHandleByIndex(gpu) if isinstance(gpu, int) else pynvml.nvmlDeviceGetHandleByUUID(gpu)


def _used(device: object, pids: Collection[int]) -> list[int]:
    """Return the bytes of each of the processes on a GPU that NVML shows."""
    import pynvml

    running = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    return [process.usedGpuMemory for process in running if process.pid in pids and process.usedGpuMemory]


def _say(why: str) -> None:
    if not _said:
        _said.append(why)
        _LOG.warning("NVML is not available (%s): the memory that the job keeps on its GPUs is taken from its job file", why)
