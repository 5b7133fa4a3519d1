"""New weights wait in host memory of the rollout node while another job holds its device.

A sender describes the weights by a `Layout` and sends their bytes in pieces, in any order, from several senders at once if it
likes; the receiver's `WeightStage` knows when a version is complete. No device memory and no run permit are needed. At the job's
next grant its engine takes them: `engine.restore(stage.weights(), stage.version)`.

The staged bytes are a whole safetensors file in memory, so that other processes of the engine can open it by its path.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from threading import Lock

import torch
from rollmux_segment import Footprint, PageLock, Segment
from torch import Tensor

from runtime.residency.layout import Layout, Memory, StagedWeights


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
        self._lock = Lock()  # of what was received

    def begin(self, layout: Layout, version: int) -> None:
        """Expect the bytes of a version; what was staged before is dropped, and tensors taken from it are overwritten."""
        if self._segment is None or layout != self._layout:
            self.close()
            header = layout.header()
            self._segment = Segment(len(header) + layout.nbytes, self._pinned)
            self._segment.bytes[: len(header)].copy_(torch.frombuffer(bytearray(header), dtype=torch.uint8))
            self._layout, self._first, self.path = layout, len(header), self._segment.path
        self._ranges, self.version = [], version

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
        return self._segment is not None and sum(end - start for start, end in self._ranges) == self._layout.nbytes

    def weights(self) -> StagedWeights:
        """The staged weights, without a copy; valid until the next `begin`.

        Raises:
            RuntimeError: they are not complete.
        """
        if self._segment is None or self.path is None or not self.complete:
            here = sum(end - start for start, end in self._ranges)
            raise RuntimeError(
                f"weights of version {self.version} are not complete: {here} of {self._layout.nbytes} bytes are here"
            )
        return StagedWeights(self._layout.views(self._segment.bytes[self._first :]), self.path)

    def memory(self) -> Memory:
        """Where the bytes of the weights are for other processes of this machine, after `begin`."""
        assert self._segment is not None
        return Memory(self._segment.file, self._first)

    def footprint(self) -> Footprint:
        """The host memory that it takes."""
        return self._segment.footprint() if self._segment is not None else Footprint()

    def close(self) -> None:
        """Give the memory back. Again: no effect."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self.version, self.path, self._ranges = None, None, None, []
        self._layout = Layout((), 0)


class OpenedStage:
    """What another process has staged, mapped into this one once and without a copy.

    Args:
        path: of `StagedWeights`. pinned: page-lock it here too, for a CUDA device.

    Raises:
        OSError: there is no such file any more.
    """

    def __init__(self, path: str, pinned: bool) -> None:
        self._file = os.open(path, os.O_RDWR)
        try:
            self._bytes = torch.frombuffer(mmap.mmap(self._file, 0), dtype=torch.uint8)
            self._locked = PageLock([self._bytes] if pinned else ())
        except BaseException:
            os.close(self._file)
            raise
        first = 8 + int.from_bytes(self._bytes[:8].numpy().tobytes(), "little")
        layout = Layout.read(self._bytes[8:first].numpy().tobytes())
        self.weights = layout.views(self._bytes[first : first + layout.nbytes])

    def is_at(self, path: str) -> bool:
        """Whether a path, whose number another file may have got meanwhile, still leads to it."""
        there, here = os.stat(path), os.fstat(self._file)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def close(self) -> None:
        """Give it back; tensors that were taken of it stay valid."""
        self._locked.close()
        os.close(self._file)
