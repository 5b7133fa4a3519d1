"""The GPUs of this machine, and what CUDA takes of one for a process beside what its allocators know of."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rollmux_segment import Footprint

_SLOW_S = 20.0  # for nvidia-smi
_MIB = 1 << 20
_LISTED = Path("/proc/driver/nvidia/gpus")  # a folder each; missing in some containers
_DEVICES = Path("/dev")
_ASKED = "index,uuid,name,memory.total,driver_version,memory.free"


class Gpu(NamedTuple):
    """A GPU as nvidia-smi lists it.

    Attributes:
        memory_gb: in GiB, as the makers of GPUs count. free_bytes: that no process has; 0 where nobody says.
    """

    name: str
    memory_gb: float
    driver: str
    free_bytes: int = 0


def find_gpus() -> list[Gpu]:
    """The GPUs that the driver knows, but for hidden ones; none where there is no driver, or it does not answer."""
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
        Gpu(name, float(memory_mb) / 1024, driver, int(free_mb) * _MIB if free_mb.isdigit() else 0)
        for _, _, name, memory_mb, driver, free_mb in _visible(rows)
    ]


def named_devices() -> list[str] | None:
    """Return the indices or UUIDs in CUDA_VISIBLE_DEVICES up to an empty or negative one; None if it is not set."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return None
    names = [name.strip() for name in wanted.split(",")]
    return [*itertools.takewhile(lambda name: name and not name.startswith("-"), names)]


def device_count() -> int:
    """Return the number of GPUs that CUDA shows on this machine, by the driver's list, nvidia-smi, or the device files."""
    if (names := named_devices()) is not None:
        return len(names)
    listed = len([*_LISTED.iterdir()]) if _LISTED.is_dir() else 0
    return listed or len(find_gpus()) or len([*_DEVICES.glob("nvidia[0-9]*")])


def _visible(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The GPUs, by index and UUID, that CUDA shows: those of CUDA_VISIBLE_DEVICES up to the first that is none."""
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
        message: Text of the error; errors that come from another process may have lost their class.
    """
    words = message.lower()
    return ("out of memory" in words and ("cuda" in words or "gpu" in words)) or "cublas_status_alloc_failed" in words


class OwnOfCuda:
    """What CUDA takes of GPUs for a process: contexts, kernels that are loaded, communicators; 0.5 to 4 GB of each.

    It is the memory that is free before the process uses CUDA and no longer afterwards, without what its allocators have. In
    between nobody else's changes, since the process has its permit. It stays as long as the process does.

    Args:
        gpus: of the process, whose first one is measured; none on a CPU.
    """

    def __init__(self, gpus: int) -> None:
        there = find_gpus() if gpus else []
        self._before, self._gpus = (there[0].free_bytes if there else 0), gpus
        self._bytes: int | None = None  # of all GPUs, once it is measured

    def added(self, footprint: Footprint) -> Footprint:
        """A footprint with it; measured at the first time, when all that the process does has been done once."""
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
