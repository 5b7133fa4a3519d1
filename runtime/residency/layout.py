"""Layout of tensors in the bytes of a set of weights, as in a safetensors file. Free of torch, for the job that plans a sync."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class WeightMemory(NamedTuple):
    """Shared memory that contains the bytes of weights.

    Attributes:
        file: File descriptor in this process.
        first: Offset of the first byte in the file.
    """

    file: int
    first: int = 0


class StagedWeights(dict[str, "Tensor"]):
    """Weights by name in a safetensors file in memory.

    Attributes:
        path: Path of the file for other processes of the same user.
    """

    def __init__(self, weights: Mapping[str, Tensor], path: str) -> None:
        super().__init__(weights)
        self.path = path


@dataclass(frozen=True)
class WeightLayout:
    """Position of each tensor in the bytes of a set of weights.

    Attributes:
        tensors: Rows of the tensors, in order and without gaps: name, safetensors' code of the dtype, shape, first byte, and end.
        nbytes: Number of all bytes.
    """

    tensors: tuple[tuple[str, str, tuple[int, ...], int, int], ...]
    nbytes: int

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> WeightLayout:
        """Return the layout of weights. It depends only on names, dtypes and shapes."""
        rows, start = [], 0
        for name in sorted(weights, key=lambda name: (-weights[name].element_size(), name)):  # keeps every tensor aligned
            tensor = weights[name]
            end = start + tensor.numel() * tensor.element_size()
            rows.append((name, _CODES[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape), start, end))
            start = end
        return cls(tuple(rows), start)

    def header(self, **metadata: str) -> bytes:
        """Return the part of a safetensors file before the bytes.

        Args:
            metadata: Metadata, which come first in it.
        """
        entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        entries |= {
            name: {"dtype": code, "shape": list(shape), "data_offsets": [start, end]}
            for name, code, shape, start, end in self.tensors
        }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % 64)
        return len(text).to_bytes(8, "little") + text

    @classmethod
    def read(cls, header: bytes) -> WeightLayout:
        """Parse the layout of a safetensors file from its header without the eight bytes of its length."""
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        rows = [(name, one["dtype"], tuple(one["shape"]), *one["data_offsets"]) for name, one in entries.items()]
        return cls(tuple(rows), max((end for *_, end in rows), default=0))

    def views(self, data: Tensor) -> dict[str, Tensor]:
        """Return the tensors as views of their bytes, which are uint8 of shape (nbytes,)."""
        import torch

        dtypes = {code: getattr(torch, name) for name, code in _CODES.items()}
        return {name: data[start:end].view(dtypes[code]).view(shape) for name, code, shape, start, end in self.tensors}
