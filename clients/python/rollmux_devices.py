"""What the processes of a job have on the GPUs of this machine, as NVML sees it: contexts and communicators count, too.

Needs pynvml (`pip install nvidia-ml-py`). Where it is missing, or NVML shows none of the job's processes, as in a container with
process ids of its own, the service goes by what the job file states, and one line says so.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Collection
from typing import Any

import rollmux_client

__all__ = ["device_gb", "report"]

_LOG = logging.getLogger("rollmux_client")
_said: list[str] = []


def report(job: rollmux_client.Job, turn: rollmux_client.Phase) -> None:
    """Write into a turn, before it is released, what the job keeps on the GPUs of the turn's nodes on this machine."""
    if job.lease is None:
        return
    sides = [turn.name] if turn.name in job.nodes else [*job.nodes]
    here = [node for side in sides for node in job.nodes[side] if rollmux_client.same_host(node["host"], socket.gethostname())]
    gpus = {gpu for node in here for gpu in node["gpus"]}
    if gpus:
        turn.device_gb = device_gb(job.pids(), gpus)


def device_gb(pids: Collection[int], gpus: Collection[int | str]) -> float | None:
    """Memory of some processes on that GPU, of these indices or UUIDs, where they have most, GB; None: nobody can say."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        _say(str(error))
        return None
    try:
        shown = [_used(_handle(pynvml, gpu), pids) for gpu in gpus]
    finally:
        pynvml.nvmlShutdown()
    if not any(shown):
        _say("it shows no process of the job")
        return None
    return max(map(sum, shown)) / 1e9


def _handle(pynvml: Any, gpu: int | str) -> Any:
    """Return NVML's handle of a GPU, which knows nothing of CUDA_VISIBLE_DEVICES: by index, or by UUID."""
    return pynvml.nvmlDeviceGetHandleByIndex(gpu) if isinstance(gpu, int) else pynvml.nvmlDeviceGetHandleByUUID(gpu)


def _used(device: object, pids: Collection[int]) -> list[int]:
    """Bytes of each of some processes that NVML shows on a GPU."""
    import pynvml

    running = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    return [process.usedGpuMemory for process in running if process.pid in pids and process.usedGpuMemory]


def _say(why: str) -> None:
    if not _said:
        _said.append(why)
        _LOG.warning("NVML cannot be asked (%s): what the job keeps on its GPUs goes by its job file", why)
