"""Shared memory without a name: where state waits between phases; and how bytes of it are counted.

A memfd, not a file in /dev/shm: it has no name to leave behind, so the kernel frees it with the last process that holds it, also
after `kill -9`, and the size of /dev/shm (64 MB in a default container) does not limit it. Another process of the same user may
open it by `path` as long as the owner lives.
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
"""Bytes from which on a block of memory may have pages of its own."""


class Footprint(NamedTuple):
    """Bytes that a worker's state takes, by where they are.

    Attributes:
        device: on the accelerator, or in the process's own memory where there is none.
        host: in host memory, waiting for the next phase.
        mapped: of `host`, what the worker's resident size holds too, as page-locked memory is: it counts once.
        peak: on the accelerator, the most that the worker has had there so far; 0 where there is none.
        capacity: of the accelerators that it is on; 0 where there are none.
        taken: Bytes of the fullest of these accelerators that are not free, whichever process has them; 0 if there is none.
    """

    device: int = 0
    host: int = 0
    mapped: int = 0
    peak: int = 0
    capacity: int = 0
    taken: int = 0

    def __add__(self, other: object) -> Footprint:
        """Return the bytes of both, place by place; of `taken`, the larger number."""
        if not isinstance(other, Footprint):
            return NotImplemented
        return Footprint(*(a + b for a, b in zip(self, other)))._replace(taken=max(self.taken, other.taken))


class Segment:
    """A piece of shared memory, zero at first.

    Args:
        nbytes: its size, 1 or more.
        pinned: page-lock it for fast copies to and from a CUDA device; slow to make, so keep it.

    Attributes:
        bytes: uint8 tensor over it, of shape (nbytes,); pages are taken when they are first written.
        file: its descriptor in this process. path: what other processes open.

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
        """Bytes of memory that it takes, as the kernel counts them."""
        return os.fstat(self.file).st_blocks * 512

    def footprint(self) -> Footprint:
        """The host memory that it takes. This process's resident size holds it if it is page-locked, and else does no longer."""
        self.unmap_pages()
        return Footprint(host=self.resident(), mapped=self.resident() if self.pinned else 0)

    def unmap_pages(self) -> None:
        """Leave its pages to the segment alone, out of this process's resident size, until they are touched again."""
        if self._map is not None and not self.pinned:
            self._map.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: the content stays

    def close(self) -> None:
        """Give it back; its memory goes when the last tensor over it does. Again: no effect."""
        if self._map is None:
            return
        if self.pinned:
            _cuda().cudaHostUnregister(self.bytes.data_ptr())
            self.pinned = False
        self.bytes = self.bytes[:0].clone()
        self._map = None  # not closed: tensors that others made of it stay valid
        os.close(self.file)

    def __del__(self) -> None:
        if getattr(self, "_map", None) is not None and not sys.is_finalizing():
            self.close()


class PageLock:
    """Page-locks tensors of this process where they are, for fast copies to and from a CUDA device.

    Args:
        tensors: in host memory, in blocks of pages of their own (`rollmux_offload.map_large_blocks`). Those of less than
            a megabyte are left as they are.

    Raises:
        RuntimeError: CUDA refuses to page-lock one.
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
        """Unlock them. Again: no effect."""
        while self._places:
            _cuda().cudaHostUnregister(self._places.pop())


def _lock_pages(place: int, nbytes: int) -> None:
    status = int(_cuda().cudaHostRegister(place, nbytes, 1))  # 1: for every CUDA context
    if status:
        raise RuntimeError(f"CUDA cannot page-lock {nbytes} bytes of host memory (error {status}; `ulimit -l` may be too low)")


def _cuda() -> Any:
    import torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
