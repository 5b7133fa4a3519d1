"""New weights wait in host memory of the rollout node while another job holds its device.

A sender describes the weights by a `Layout` and sends their bytes in pieces, in any order, from several senders at once if it
likes; the receiver's `WeightStage` knows when a version is complete. No device memory and no run permit are needed. At the job's
next grant its engine takes them: `engine.restore(stage.weights(), stage.version)`.

The staged bytes are a whole safetensors file in memory, so that other processes of the engine can open it by its path.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.residency.segment import Segment

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies in the bytes of a set of weights.

    Attributes:
        tensors: (name, safetensors' code of the dtype, shape, first byte, behind the last byte) of each, in order, without gaps.
        nbytes: all of them.
    """

    tensors: tuple[tuple[str, str, tuple[int, ...], int, int], ...]
    nbytes: int

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> Layout:
        """The layout of these weights; depends on names, dtypes and shapes alone."""
        rows, start = [], 0
        for name in sorted(weights, key=lambda name: (-weights[name].element_size(), name)):  # so that each is aligned
            tensor = weights[name]
            end = start + tensor.numel() * tensor.element_size()
            rows.append((name, _CODES[tensor.dtype], tuple(tensor.shape), start, end))
            start = end
        return cls(tuple(rows), start)

    def header(self) -> bytes:
        """What stands before the bytes in a safetensors file."""
        entries = {
            name: {"dtype": code, "shape": list(shape), "data_offsets": [start, end]}
            for name, code, shape, start, end in self.tensors
        }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % 64)
        return len(text).to_bytes(8, "little") + text

    def views(self, data: Tensor) -> dict[str, Tensor]:
        """The tensors over their bytes: uint8, of shape (nbytes,)."""
        return {name: data[start:end].view(_DTYPES[code]).view(shape) for name, code, shape, start, end in self.tensors}


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
        self._received: list[tuple[int, int]] = []  # disjoint, sorted: first byte, behind the last

    def begin(self, layout: Layout, version: int) -> None:
        """Expect the bytes of a version; what was staged before is dropped, and tensors taken from it are overwritten."""
        if self._segment is None or layout != self._layout:
            self.close()
            header = layout.header()
            self._segment = Segment(len(header) + layout.nbytes, self._pinned)
            self._segment.bytes[: len(header)].copy_(torch.frombuffer(bytearray(header), dtype=torch.uint8))
            self._layout, self._first, self.path = layout, len(header), self._segment.path
        self._received, self.version = [], version

    def receive(self, version: int, offset: int, data: Tensor) -> None:
        """Take a piece.

        Args:
            version: that `begin` announced.
            offset: of its first byte among the weights' bytes.
            data: uint8, of shape (n,).

        Raises:
            ValueError: of another version, or its bytes lie outside the weights or came before; nothing is taken.
        """
        start, end = offset, offset + len(data)
        place = bisect(self._received, (start, end))
        before = self._received[place - 1][1] if place else 0
        behind = self._received[place][0] if place < len(self._received) else self._layout.nbytes
        if self._segment is None or version != self.version:
            raise ValueError(f"weights of version {version} came, {self.version} is expected")
        if start < before or end > behind:
            raise ValueError(f"bytes {start} to {end} of weights {version} came before or are outside of {self._layout.nbytes}")
        self._segment.bytes[self._first + start : self._first + end].copy_(data)
        self._received.insert(place, (start, end))

    @property
    def complete(self) -> bool:
        """Every byte of the version is here."""
        return self._segment is not None and sum(end - start for start, end in self._received) == self._layout.nbytes

    def weights(self) -> dict[str, Tensor]:
        """The staged weights, without a copy; valid until the next `begin`.

        Raises:
            RuntimeError: they are not complete.
        """
        if self._segment is None or not self.complete:
            here = sum(end - start for start, end in self._received)
            raise RuntimeError(
                f"weights of version {self.version} are not complete: {here} of {self._layout.nbytes} bytes are here"
            )
        return self._layout.views(self._segment.bytes[self._first :])

    def resident(self) -> int:
        """Bytes of host memory that it takes."""
        return self._segment.resident() if self._segment is not None else 0

    def close(self) -> None:
        """Give the memory back. Again: no effect."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self.version, self.path, self._received = None, None, None, []
        self._layout = Layout((), 0)
