"""The GPUs of this machine, and the memory that CUDA itself takes on them for a process."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rollmux_segment import Footprint

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line

_SLOW_S = 20.0  # longest wait for nvidia-smi
_MIB = 1 << 20
_LISTED = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU; missing in some containers
_DEVICES = Path("/dev")
_ASKED = "index,uuid,name,memory.total,driver_version,memory.free"


class GpuInfo(NamedTuple):
    """A GPU as nvidia-smi lists it.

    Attributes:
        name: Model of the GPU.
        memory_gb: Memory in GiB, as makers of GPUs count.
        driver: Version of the driver.
        free_bytes: Free memory in bytes; 0 if unknown.
    """

    name: str
    memory_gb: float
    driver: str
    free_bytes: int = 0


def find_gpus() -> list[GpuInfo]:
    """Return the GPUs that the driver lists and CUDA_VISIBLE_DEVICES shows; none if there is no driver or it does not answer."""
    command = shutil.which("nvidia-smi")
    if command is None or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return []
    query = [command, f"--query-gpu={_ASKED}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=_SLOW_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    rows = [row for row in rows if len(row) == 6 and row[3].replace(".", "").isdigit()]
    return [
        GpuInfo(name, float(memory_mb) / 1024, driver, int(free_mb) * _MIB if free_mb.isdigit() else 0)
        for _, _, name, memory_mb, driver, free_mb in _visible(rows)
    ]


def named_devices() -> list[str] | None:
    """Return the indices or UUIDs in CUDA_VISIBLE_DEVICES up to an empty or negative one; None if it is not set.

    Raises:
        InputError: If it names a device twice, so that CUDA shows none.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return None
    listed = [name.strip() for name in wanted.split(",")]
    names = [*itertools.takewhile(lambda name: name and not name.startswith("-"), listed)]
    if twice := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise InputError(
            f"CUDA_VISIBLE_DEVICES={one_line(wanted, 300)} names {one_line(twice, 100)} twice, and CUDA shows no device then"
        )
    return names


def device_count() -> int:
    """Return the number of GPUs that CUDA shows on this machine, by the driver's list, nvidia-smi, or the device files."""
    if (names := named_devices()) is not None:
        return len(names)
    listed = len([*_LISTED.iterdir()]) if _LISTED.is_dir() else 0
    return listed or len(find_gpus()) or len([*_DEVICES.glob("nvidia[0-9]*")])


def _visible(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the rows of GPUs that CUDA shows: those of CUDA_VISIBLE_DEVICES up to the first unknown one."""
    wanted = named_devices()
    if wanted is None:
        return [*rows]
    shown: list[Sequence[str]] = []
    for name in wanted:
        row = next((row for row in rows if row[0] == name or (name.startswith("GPU-") and row[1].startswith(name))), None)
        if row is None:
            break
        shown.append(row)
    return shown


def is_out_of_memory(message: str) -> bool:
    """Return whether an error says that a GPU had too little memory, in the words of torch, vLLM, NCCL or this project.

    Args:
        message: Text of the error. An error from another process may have lost its class.
    """
    words = message.lower()
    return ("out of memory" in words and ("cuda" in words or "gpu" in words)) or "cublas_status_alloc_failed" in words


class CudaOverhead:
    """The memory that CUDA itself takes on GPUs for a process: contexts, loaded kernels and communicators, 0.5 to 4 GB per GPU.

    It is measured as the memory that was free before the process used CUDA and is not free afterwards, less what the allocators
    hold. No other process changes its memory in between, because this process has its permit. The memory remains until the process
    ends.

    Args:
        gpus: Number of GPUs of the process, the first of which is measured; 0 on a CPU.
    """

    def __init__(self, gpus: int) -> None:
        there = find_gpus() if gpus else []
        self._before, self._gpus = (there[0].free_bytes if there else 0), gpus
        self._bytes: int | None = None  # bytes on all GPUs, or None before the measurement

    def added(self, footprint: Footprint) -> Footprint:
        """Return a footprint with CUDA's own memory added.

        That is measured at the first call, when the process has used all of its kernels once.
        """
        if self._bytes is None:
            self._bytes = self._measured(footprint) if self._before else 0
        return footprint._replace(device=footprint.device + self._bytes, peak=footprint.peak and footprint.peak + self._bytes)

    def _measured(self, footprint: Footprint) -> int:
        import torch

        if not torch.cuda.is_available():
            return 0
        taken = self._before - torch.cuda.mem_get_info()[0]
        known = max(footprint.device // self._gpus, torch.cuda.memory_reserved())
        return max(0, taken - known) * self._gpus
