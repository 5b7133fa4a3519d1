"""New weights wait in host memory of the rollout node while another job holds its device.

A sender describes the weights by a `Layout` and sends their bytes in pieces, in any order, from several senders at once if it
likes; the receiver's `WeightStage` knows when a version is complete. No device memory and no run permit are needed. At the job's
next grant its engines take them.

One process of a machine stages for all engines of its job there. The staged bytes are a whole safetensors file in memory, which the
others open by its path and read by a `StageReader`. Who writes has an exclusive lock of the file, who reads a shared one; and the
file's header says which version is there, or none while one is being written. So nobody reads a mixture of two, also when the
writer is killed: its lock goes with it, and the header says that nothing is there.
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

from runtime.residency.layout import Layout, Memory, StagedWeights

_NO_VERSION = b"-" * 20
_VERSION_AT = 8 + len('{"__metadata__":{"version":"')  # in the file
_VERSION = slice(_VERSION_AT, _VERSION_AT + len(_NO_VERSION))


class Landed(NamedTuple):
    """Weights that are staged.

    Attributes:
        version: of them. path: of the memory, for processes of this machine.
    """

    version: int
    path: str


def pieces(weights: Mapping[str, Tensor], layout: Layout, most: int = 64 << 20) -> Iterator[tuple[int, Tensor]]:
    """Cut weights into (offset, uint8 tensor on the CPU) for `WeightStage.receive`, of `most` bytes at most."""
    for name, _, _, start, end in layout.tensors:
        data = weights[name].detach().cpu().contiguous().flatten().view(torch.uint8)
        for cut in range(0, end - start, most):
            yield start + cut, data[cut : cut + most]


class WeightStage:
    """Receives weights into host memory, one version at a time; its memory is kept for the next one.

    Args:
        pinned: page-lock the memory, for an engine on a CUDA device.

    Attributes:
        version: of the weights that are staged or being received; None at first.
        path: a safetensors file that other processes of the same user can open while this one lives; None at first.
    """

    def __init__(self, pinned: bool = False) -> None:
        self.version: int | None = None
        self.path: str | None = None
        self._pinned = pinned
        self._segment: Segment | None = None
        self._layout = Layout((), 0)
        self._first = 0  # where the weights' bytes begin in the segment
        self._ranges: list[tuple[int, int]] = []  # disjoint, sorted: first byte, behind the last
        self._here = 0  # bytes in them
        self._lock = Lock()  # of what was received
        self._writes: int | None = None  # the descriptor whose lock says so

    def begin(self, layout: Layout, version: int) -> None:
        """Expect the bytes of a version; what was staged before is dropped, and tensors taken from it are overwritten.

        Waits for those who read that, and keeps them from reading until the version is complete, or `end`.
        """
        if self._segment is None or layout != self._layout:
            self.close()
            header = layout.header(version=_NO_VERSION.decode())
            self._segment = Segment(len(header) + layout.nbytes, self._pinned)
            self._segment.bytes[: len(header)].copy_(torch.frombuffer(bytearray(header), dtype=torch.uint8))
            self._layout, self._first, self.path = layout, len(header), self._segment.path
        if self._writes is None:
            self._writes = _locked(self._segment.path)
        self._say(_NO_VERSION)
        self._ranges, self._here, self.version = [], 0, version
        if not layout.nbytes:
            self._finish()

    def end(self) -> None:
        """Nothing more comes of the version; what there is of it counts as nothing, unless it is complete. Again: no effect."""
        if self._writes is not None:
            os.close(self._writes)
        self._writes = None

    def _finish(self) -> None:
        """The version is complete."""
        self._say(str(self.version).zfill(len(_NO_VERSION)).encode())
        self.end()

    def _say(self, version: bytes) -> None:
        assert self._segment is not None
        self._segment.bytes[_VERSION].copy_(torch.frombuffer(bytearray(version), dtype=torch.uint8))

    def receive(self, version: int, offset: int, data: Tensor) -> None:
        """Take a piece.

        Args:
            version: that `begin` announced.
            offset: of its first byte among the weights' bytes.
            data: uint8, of shape (n,).

        Raises:
            ValueError: of another version, or its bytes lie outside the weights or came before; nothing is taken.
        """
        self.take(version, offset, offset + len(data), lambda room: room.copy_(data))

    def take(self, version: int, start: int, end: int, fill: Callable[[Tensor], object]) -> None:
        """Let a piece be written where it belongs; several threads may, each its own.

        Args:
            version: that `begin` announced.
            start, end: its bytes among the weights' bytes.
            fill: is handed their memory, uint8 of shape (end - start,); what it raises leaves the piece missing.

        Raises:
            ValueError: as `receive`.
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
        """Where among what was received some bytes belong."""
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
        """Every byte of the version is here."""
        return self._segment is not None and self._here == self._layout.nbytes

    def weights(self) -> StagedWeights:
        """The staged weights, without a copy; valid until the next `begin`.

        Raises:
            RuntimeError: they are not complete.
        """
        if self._segment is None or self.path is None or not self.complete:
            raise RuntimeError(
                f"weights of version {self.version} are not complete: {self._here} of {self._layout.nbytes} bytes are here"
            )
        return StagedWeights(self._layout.views(self._segment.bytes[self._first :]), self.path)

    def landed(self) -> Landed | None:
        """What others of this machine may read; None: nothing is complete."""
        return Landed(self.version, self.path) if self.version is not None and self.path is not None and self.complete else None

    def bytes_at(self, path: str) -> Tensor | None:
        """The whole file, if it is this stage's that is there."""
        return self._segment.bytes if self._segment is not None and path == self.path else None

    def memory(self) -> Memory:
        """Where the bytes of the weights are for other processes of this machine, after `begin`."""
        assert self._segment is not None
        return Memory(self._segment.file, self._first)

    def footprint(self) -> Footprint:
        """The host memory that it takes."""
        return self._segment.footprint() if self._segment is not None else Footprint()

    def close(self) -> None:
        """Give the memory back. Again: no effect."""
        self.end()
        if self._segment is not None:
            self._segment.close()
        self._segment, self.version, self.path, self._ranges = None, None, None, []
        self._layout, self._here = Layout((), 0), 0


class OpenedStage:
    """What a process has staged, mapped into this one once and without a copy.

    Args:
        path: of `StagedWeights`. pinned: page-lock it here too, for a CUDA device. mapped: its bytes, if this process has staged
            them.

    Raises:
        OSError: there is no such file any more.
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
        layout = Layout.read(mapped[8:first].numpy().tobytes())
        self.weights = layout.views(mapped[first : first + layout.nbytes])

    def is_at(self, path: str) -> bool:
        """Whether a path, whose number another file may have got meanwhile, still leads to it; raises OSError if to none."""
        there, here = os.stat(path), os.fstat(self._file)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    @contextmanager
    def read(self) -> Iterator[int | None]:
        """Keep its writer from it, after waiting for him; gives the version that is there whole, or None."""
        fcntl.flock(self._file, fcntl.LOCK_SH)
        try:
            version = self._bytes[_VERSION].numpy().tobytes()
            yield int(version) if version.isdigit() else None
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            if self._map is not None and not self._pinned:
                self._map.madvise(mmap.MADV_DONTNEED)  # the content stays; this process's resident size does not hold it

    def footprint(self) -> Footprint:
        """What of this process's resident size is another one's memory, which that one counts."""
        return Footprint(mapped=os.fstat(self._file).st_blocks * 512 if self._pinned else 0)

    def close(self) -> None:
        """Give it back; tensors that were taken of it stay valid."""
        self._locked.close()
        os.close(self._file)


class StageReader:
    """Reads what a process of this machine has staged, and keeps it mapped as long as it is the same memory.

    Args:
        pinned: page-lock it here too. own: the stage of this process, which may be the one that is read.

    Attributes:
        landed: what is there to be read, as this process has been told last; None: nothing.
    """

    def __init__(self, pinned: bool, own: WeightStage | None = None) -> None:
        self.landed: Landed | None = None
        self._pinned, self._own = pinned, own
        self._opened: OpenedStage | None = None

    @contextmanager
    def reading(self) -> Iterator[tuple[StagedWeights, int]]:
        """The weights that are there and their version, not older than was told; a sync that is under way is waited for.

        Raises:
            RuntimeError: there are none, or only a part; one line.
        """
        if self.landed is None:
            raise RuntimeError("no weights are staged")
        known, path = self.landed
        try:
            opened = self.open(path)
        except OSError:
            raise RuntimeError(f"weights of version {known} are gone: the process that had staged them has ended") from None
        with opened.read() as version:
            if version is None:
                raise RuntimeError(f"weights that were staged after version {known} are not complete: their sync has failed")
            yield StagedWeights(opened.weights, path), version

    def open(self, path: str) -> OpenedStage:
        """What is there. Raises OSError: nothing any more."""
        if self._opened is not None and not self._opened.is_at(path):
            self.close()
        if self._opened is None:
            self._opened = OpenedStage(path, self._pinned, self._own.bytes_at(path) if self._own is not None else None)
        return self._opened

    def footprint(self) -> Footprint:
        """As `OpenedStage.footprint`."""
        return self._opened.footprint() if self._opened is not None else Footprint()

    def close(self) -> None:
        """Give back what is mapped. Again: no effect."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None


def _locked(path: str) -> int:
    """A descriptor of a file that nobody else reads or writes until it is closed, after waiting for those who do."""
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except BaseException:
        os.close(file)
        raise
    return file
