"""Host memory of a rollout node in which new weights wait while another job holds the node's device.

A sender describes the weights by a `WeightLayout` and sends their bytes in pieces, in any order and possibly from several senders
at once. The receiver's `WeightStage` recognises when a version is complete. None of this needs device memory or a run permit. The
engines of the job take the weights at its next grant.

One process of a machine stages for all engines of its job on that machine. The staged bytes form a whole safetensors file in
memory. The other processes open it by its path and read it with a `StageReader`. A writer holds an exclusive lock on the file and a
reader a shared one. The file's header contains the version of the weights, or no version while they are being written. So a
reader never gets a mixture of two versions. This also holds when the writer is killed: its lock ends with it, and the header still
contains no version.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import torch
from rollmux_segment import Footprint, PageLock, Segment
from torch import Tensor

from runtime.residency.layout import StagedWeights, WeightLayout, WeightMemory

_NO_VERSION = b"-" * 20
_VERSION_AT = 8 + len('{"__metadata__":{"version":"')  # offset of the version in the file
_VERSION = slice(_VERSION_AT, _VERSION_AT + len(_NO_VERSION))


class StagedVersion(NamedTuple):
    """Staged weights that can be read.

    Attributes:
        version: Version of the weights.
        path: Path of the memory for processes of this machine.
    """

    version: int
    path: str


def pieces(weights: Mapping[str, Tensor], layout: WeightLayout, most: int = 64 << 20) -> Iterator[tuple[int, Tensor]]:
    """Cut weights into pieces for `WeightStage.receive`.

    Args:
        weights: Tensors by name, on any device.
        layout: Layout of the weights.
        most: Largest size of a piece, in bytes.

    Yields:
        Offset of each piece among the weights' bytes, and its bytes as a uint8 tensor on the CPU.
    """
    for name, _, _, start, end in layout.tensors:
        data = weights[name].detach().cpu().contiguous().flatten().view(torch.uint8)
        for cut in range(0, end - start, most):
            yield start + cut, data[cut : cut + most]


class WeightStage:
    """Host memory that receives weights, one version at a time. It keeps its memory for the next version.

    Args:
        pinned: Page-lock the memory, for an engine on a CUDA device.

    Attributes:
        version: Version of the weights that are staged or being received, None before the first one.
        path: Path of a safetensors file that other processes of the same user can open while this object lives, None before the
            first version.
    """

    def __init__(self, pinned: bool = False) -> None:
        self.version: int | None = None
        self.path: str | None = None
        self._pinned = pinned
        self._segment: Segment | None = None
        self._layout = WeightLayout((), 0)
        self._first = 0  # offset of the weights' bytes in the segment
        self._ranges: list[tuple[int, int]] = []  # ranges that have been received: sorted, disjoint, each (first byte, end)
        self._here = 0  # number of bytes in these ranges
        self._lock = Lock()  # guards the two above
        self._writes: int | None = None  # descriptor that holds the exclusive lock while a version is written

    def begin(self, layout: WeightLayout, version: int) -> None:
        """Expect the bytes of a version.

        The weights that were staged before are dropped, and tensors taken from them are overwritten. The call waits for those who
        read them. From then on, reading is blocked until the version is complete or `end` is called.

        Args:
            layout: Layout of the weights.
            version: Version of the weights.
        """
        if self._segment is None or layout != self._layout:
            self.close()
            header = layout.header(version=_NO_VERSION.decode())
            self._segment = Segment(len(header) + layout.nbytes, self._pinned)
            self._segment.bytes[: len(header)].copy_(torch.frombuffer(bytearray(header), dtype=torch.uint8))
            self._layout, self._first, self.path = layout, len(header), self._segment.path
        if self._writes is None:
            self._writes = _locked(self._segment.path)
        self._write_version(_NO_VERSION)
        self._ranges, self._here, self.version = [], 0, version
        if not layout.nbytes:
            self._finish()

    def end(self) -> None:
        """Give up an incomplete version, so that readers find no version. Has no effect on a complete one, or when repeated."""
        if self._writes is not None:
            os.close(self._writes)
        self._writes = None

    def _finish(self) -> None:
        """Mark the version as complete and let others read it."""
        self._write_version(str(self.version).zfill(len(_NO_VERSION)).encode())
        self.end()

    def _write_version(self, version: bytes) -> None:
        """Write a version, or `_NO_VERSION`, into the file's header."""
        assert self._segment is not None
        self._segment.bytes[_VERSION].copy_(torch.frombuffer(bytearray(version), dtype=torch.uint8))

    def receive(self, version: int, offset: int, data: Tensor) -> None:
        """Copy a piece to its place.

        Args:
            version: Version of the weights, as passed to `begin`.
            offset: Offset of the piece's first byte among the weights' bytes.
            data: Bytes of the piece, uint8 of shape (n,).

        Raises:
            ValueError: The piece has another version, or its bytes lie outside of the weights or have been received before. Nothing
                is copied then.
        """
        self.receive_with(version, offset, offset + len(data), lambda room: room.copy_(data))

    def receive_with(self, version: int, start: int, end: int, fill: Callable[[Tensor], object]) -> None:
        """Let `fill` write a piece at its place. Several threads may do this at once, each with its own piece.

        Args:
            version: Version of the weights, as passed to `begin`.
            start: Offset of the piece's first byte among the weights' bytes.
            end: Offset behind its last byte.
            fill: Function that writes the piece into the memory passed to it, uint8 of shape (end - start,). If it raises, the
                piece stays missing.

        Raises:
            ValueError: As in `receive`.
        """
        with self._lock:
            self._check(version, start, end)
        assert self._segment is not None
        fill(self._segment.bytes[self._first + start : self._first + end])
        with self._lock:
            self._ranges.insert(self._check(version, start, end), (start, end))
            self._here += end - start
            if self.complete:
                self._finish()

    def _check(self, version: int, start: int, end: int) -> int:
        """Check that a piece is expected, and return its index in the ranges that have been received."""
        place = bisect(self._ranges, (start, end))
        before = self._ranges[place - 1][1] if place else 0
        behind = self._ranges[place][0] if place < len(self._ranges) else self._layout.nbytes
        if self._segment is None or version != self.version:
            raise ValueError(f"weights of version {version} came, {self.version} is expected")
        if start < before or end > behind:
            raise ValueError(f"bytes {start} to {end} of weights {version} came before or are outside of {self._layout.nbytes}")
        return place

    @property
    def complete(self) -> bool:
        """Whether all bytes of the version have been received."""
        return self._segment is not None and self._here == self._layout.nbytes

    def weights(self) -> StagedWeights:
        """Return the staged weights without a copy. They are valid until the next `begin`.

        Raises:
            RuntimeError: The weights are not complete.
        """
        if self._segment is None or self.path is None or not self.complete:
            raise RuntimeError(
                f"weights of version {self.version} are not complete: {self._here} of {self._layout.nbytes} bytes are here"
            )
        return StagedWeights(self._layout.views(self._segment.bytes[self._first :]), self.path)

    def staged_version(self) -> StagedVersion | None:
        """Return what other processes of this machine can read, or None if no version is complete."""
        return (
            StagedVersion(self.version, self.path) if self.version is not None and self.path is not None and self.complete else None
        )

    def bytes_at(self, path: str) -> Tensor | None:
        """Return the bytes of the whole file if `path` is the path of this stage, else None."""
        return self._segment.bytes if self._segment is not None and path == self.path else None

    def memory(self) -> WeightMemory:
        """Return the memory in which other processes of this machine find the weights' bytes. `begin` must have been called."""
        assert self._segment is not None
        return WeightMemory(self._segment.file, self._first)

    def footprint(self) -> Footprint:
        """Return the host memory that the stage takes."""
        return self._segment.footprint() if self._segment is not None else Footprint()

    def close(self) -> None:
        """Release the memory. Has no effect when repeated."""
        self.end()
        if self._segment is not None:
            self._segment.close()
        self._segment, self.version, self.path, self._ranges = None, None, None, []
        self._layout, self._here = WeightLayout((), 0), 0


class OpenedStage:
    """Weights that a process has staged, mapped once into this process without a copy.

    Args:
        path: Path of the staged file, as in `StagedWeights`.
        pinned: Page-lock the memory in this process too, for a CUDA device.
        mapped: Bytes of the file if this process itself has staged it, None means the file is mapped.

    Attributes:
        weights: Tensors by name.

    Raises:
        OSError: The file no longer exists.
    """

    def __init__(self, path: str, pinned: bool, mapped: Tensor | None = None) -> None:
        self._file = os.open(path, os.O_RDWR)
        self._map: mmap.mmap | None = None
        self._pinned = pinned and mapped is None
        try:
            if mapped is None:
                self._map = mmap.mmap(self._file, 0)
                mapped = torch.frombuffer(self._map, dtype=torch.uint8)
            self._bytes = mapped
            self._locked = PageLock([mapped] if self._pinned else ())
        except BaseException:
            os.close(self._file)
            raise
        first = 8 + int.from_bytes(mapped[:8].numpy().tobytes(), "little")
        layout = WeightLayout.read(mapped[8:first].numpy().tobytes())
        self.weights = layout.views(mapped[first : first + layout.nbytes])

    def is_at(self, path: str) -> bool:
        """Return whether a path still leads to this file. Another file may have got the same path since.

        Raises:
            OSError: The path leads to no file.
        """
        there, here = os.stat(path), os.fstat(self._file)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    @contextmanager
    def read(self) -> Iterator[int | None]:
        """Keep writers out during the block, after waiting for a current one.

        Yields:
            Version of the weights, None if they are not complete.
        """
        fcntl.flock(self._file, fcntl.LOCK_SH)
        try:
            version = self._bytes[_VERSION].numpy().tobytes()
            yield int(version) if version.isdigit() else None
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            if self._map is not None and not self._pinned:
                self._map.madvise(mmap.MADV_DONTNEED)  # the content stays, but no longer counts as this process's resident memory

    def footprint(self) -> Footprint:
        """Return how much of this process's resident memory belongs to another process, which counts it."""
        return Footprint(mapped=os.fstat(self._file).st_blocks * 512 if self._pinned else 0)

    def close(self) -> None:
        """Close the file. Tensors that were taken from it stay valid."""
        self._locked.close()
        os.close(self._file)


class StageReader:
    """Reader of the weights that a process of this machine has staged. It keeps them mapped while the memory stays the same.

    Args:
        pinned: Page-lock the memory in this process too.
        own: Stage of this process, which may be the one to be read. None means this process stages nothing.

    Attributes:
        staged: Latest staged weights of which this process has been told, None means there are none.
    """

    def __init__(self, pinned: bool, own: WeightStage | None = None) -> None:
        self.staged: StagedVersion | None = None
        self._pinned, self._own = pinned, own
        self._opened: OpenedStage | None = None

    @contextmanager
    def reading(self) -> Iterator[tuple[StagedWeights, int]]:
        """Keep writers out during the block, after waiting for a sync that is under way.

        Yields:
            The staged weights and their version, which may be newer than in `staged`.

        Raises:
            RuntimeError: There are no staged weights, or they are incomplete. The message is one line.
        """
        if self.staged is None:
            raise RuntimeError("no weights are staged")
        known, path = self.staged
        try:
            opened = self.open(path)
        except OSError:
            raise RuntimeError(f"weights of version {known} are gone: the process that had staged them has ended") from None
        with opened.read() as version:
            if version is None:
                raise RuntimeError(f"weights that were staged after version {known} are not complete: their sync has failed")
            yield StagedWeights(opened.weights, path), version

    def open(self, path: str) -> OpenedStage:
        """Return the file at a path, opened now or before.

        Raises:
            OSError: The file no longer exists.
        """
        if self._opened is not None and not self._opened.is_at(path):
            self.close()
        if self._opened is None:
            self._opened = OpenedStage(path, self._pinned, self._own.bytes_at(path) if self._own is not None else None)
        return self._opened

    def footprint(self) -> Footprint:
        """Return the memory that `OpenedStage.footprint` reports, or an empty footprint if nothing is open."""
        return self._opened.footprint() if self._opened is not None else Footprint()

    def close(self) -> None:
        """Unmap the memory. Has no effect when repeated."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None


def _locked(path: str) -> int:
    """Open a file, wait for all who read or write it, and keep others out until the returned descriptor is closed."""
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except BaseException:
        os.close(file)
        raise
    return file
