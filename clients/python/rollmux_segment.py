"""Anonymous shared memory for state that waits between phases, and counts of its bytes.

A segment is a memfd, not a file in /dev/shm. It has no name that could be left behind, so the kernel frees it with the last process
that holds it, even after `kill -9`. The size of /dev/shm (64 MB in a default container) does not limit it. Other processes of the
same user may open it by `path` while the owner lives.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


OWN_PAGES = 1 << 20
"""Size in bytes from which a block of memory may have separate pages."""


class Footprint(NamedTuple):
    """Bytes of a worker's state, by location.

    Attributes:
        device: Bytes on the accelerator, or in the process's own memory if there is none.
        host: Bytes in host memory that wait for the next phase.
        mapped: Part of `host` that the worker's resident size also contains, such as page-locked memory, so that it counts once.
        peak: Largest number of bytes that the worker has had on the accelerator so far, 0 if there is none.
        capacity: Capacity of the worker's accelerators in bytes, 0 if there are none.
        taken: Bytes in use on the fullest of these accelerators, by any process, 0 if there are none.
    """

    device: int = 0
    host: int = 0
    mapped: int = 0
    peak: int = 0
    capacity: int = 0
    taken: int = 0

    def __add__(self, other: object) -> Footprint:
        """Add both field by field, except `taken`, of which the larger number counts."""
        if not isinstance(other, Footprint):
            return NotImplemented
        return Footprint(*(a + b for a, b in zip(self, other)))._replace(taken=max(self.taken, other.taken))


class Segment:
    """A piece of shared memory, initially zero.

    Args:
        nbytes: Size in bytes, at least 1.
        pinned: Whether to page-lock it for fast copies to and from a CUDA device. Locking is slow, so a locked segment should be
            kept.

    Attributes:
        bytes: The memory as a uint8 tensor, shape (nbytes,). Pages are allocated when they are first written.
        file: File descriptor in this process.
        path: Path with which other processes open it.
        pinned: Whether it is page-locked.

    Raises:
        RuntimeError: CUDA refuses to page-lock it.
    """

    def __init__(self, nbytes: int, pinned: bool = False) -> None:
        self.file = os.memfd_create("rollmux", os.MFD_CLOEXEC)
        self._map: mmap.mmap | None = None
        try:
            os.ftruncate(self.file, nbytes)
            self._map = mmap.mmap(self.file, nbytes)
        except OSError:
            os.close(self.file)
            raise
        import torch

        self.bytes: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)
        self.path = f"/proc/{os.getpid()}/fd/{self.file}"
        self.pinned = False
        if pinned:
            try:
                _lock_pages(self.bytes.data_ptr(), nbytes)
            except RuntimeError:
                self.close()
                raise
            self.pinned = True

    def resident(self) -> int:
        """Return the bytes of memory that it occupies, as the kernel counts them."""
        return os.fstat(self.file).st_blocks * 512

    def footprint(self) -> Footprint:
        """Return the host memory that it occupies, after unmapping its pages from this process unless they are locked."""
        self.unmap_pages()
        return Footprint(host=self.resident(), mapped=self.resident() if self.pinned else 0)

    def unmap_pages(self) -> None:
        """Remove its pages from this process's resident size until they are touched again. The segment keeps their content."""
        if self._map is not None and not self.pinned:
            self._map.madvise(mmap.MADV_DONTNEED)  # a shared mapping keeps its content

    def close(self) -> None:
        """Close it. The memory is freed when the last tensor over it is. Closing again has no effect."""
        if self._map is None:
            return
        if self.pinned:
            _cuda().cudaHostUnregister(self.bytes.data_ptr())
            self.pinned = False
        self.bytes = self.bytes[:0].clone()
        self._map = None  # not closed, so that tensors over it stay valid
        os.close(self.file)

    def __del__(self) -> None:
        if getattr(self, "_map", None) is not None and not sys.is_finalizing():
            self.close()


class PageLock:
    """Page-locks tensors of this process in place, for fast copies to and from a CUDA device.

    Args:
        tensors: Tensors in host memory, each in a block with separate pages (`rollmux_offload.map_large_blocks`). Tensors of less
            than a megabyte are left as they are.

    Raises:
        RuntimeError: CUDA refuses to page-lock a tensor.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._places: list[int] = []
        storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
        try:
            for place, nbytes in storages.items():
                if nbytes >= OWN_PAGES:
                    _lock_pages(place, nbytes)
                    self._places.append(place)
        except RuntimeError:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the tensors. Closing again has no effect."""
        while self._places:
            _cuda().cudaHostUnregister(self._places.pop())


def _lock_pages(place: int, nbytes: int) -> None:
    status = int(_cuda().cudaHostRegister(place, nbytes, 1))  # 1: for every CUDA context
    if status:
        raise RuntimeError(f"CUDA cannot page-lock {nbytes} bytes of host memory (error {status}; `ulimit -l` may be too low)")


def _cuda() -> Any:
    import torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
