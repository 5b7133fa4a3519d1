"""What each process of a job reads of a checkpoint: the rows that it needs, and never more than a tensor or a piece at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import torch

from runtime.grpo import state
from runtime.grpo.state import read_state, stage_weights, write_shards
from runtime.residency.staging import WeightStage
from runtime.training import group

SHAPES = {"embed": (13, 8), "norm": (7,), "out": (2, 4, 3)}
KINDS = ("weights", "exp_avg", "exp_avg_sq")


class Reads:
    """Bytes that were read, by the name of the file, and of the largest piece."""

    def __init__(self) -> None:
        self.by_file: dict[str, int] = {}
        self.largest = 0

    def open(self, path: Path, framework: str) -> Any:
        file = _open(path, framework)
        return SimpleNamespace(keys=file.keys, get_slice=lambda name: Slice(self, path.name, file.get_slice(name)))


class Slice:
    def __init__(self, reads: Reads, file: str, own: Any) -> None:
        self._reads, self._file, self._own = reads, file, own
        self.get_shape = own.get_shape

    def __getitem__(self, rows: slice) -> torch.Tensor:
        tensor: torch.Tensor = self._own[rows]
        self._reads.by_file[self._file] = self._reads.by_file.get(self._file, 0) + tensor.nbytes
        self._reads.largest = max(self._reads.largest, tensor.nbytes)
        return tensor


_open = safetensors.safe_open


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counting = Reads()
    monkeypatch.setattr(safetensors, "safe_open", counting.open)
    return counting


def whole() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {f"{kind}.{name}": torch.randn(shape) for kind in KINDS for name, shape in SHAPES.items()}


def part(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    parts = tensor.chunk(world)
    return parts[rank] if rank < len(parts) else tensor[:0]


def write(folder: Path, world: int) -> dict[str, torch.Tensor]:
    """A checkpoint of so many ranks; whole tensors."""
    tensors = whole()
    for rank in range(world):
        shards = {name: part(tensor, rank, world).contiguous() for name, tensor in tensors.items()}
        write_shards(folder, rank, shards, {"updates": 5, "steps": 5, "ranks": world})
    return tensors


@pytest.mark.parametrize(("before", "now"), [(1, 1), (4, 4), (2, 4), (4, 2), (3, 5), (8, 3)])
def test_a_rank_reads_its_own_rows_alone(tmp_path: Path, reads: Reads, before: int, now: int) -> None:
    tensors = write(tmp_path, before)
    for rank in range(now):
        reads.by_file.clear()
        mesh: Any = SimpleNamespace(size=lambda: now, get_local_rank=lambda rank=rank: rank)
        like: Any = SimpleNamespace(to_local=None)
        rows, info = read_state(tmp_path)
        assert reads.by_file == {} and info["updates"] == 5
        own = {name: group.shard_of(rows[name], like, mesh) for name in rows}
        assert own.keys() == tensors.keys()
        assert all(torch.equal(own[name], part(tensor, rank, now)) for name, tensor in tensors.items())
        assert sum(reads.by_file.values()) == sum(tensor.nbytes for tensor in own.values())  # once, and no others
        if before == now:
            assert reads.by_file.keys() <= {f"rank-{rank}.safetensors"}
    assert reads.largest <= max(tensor.nbytes for tensor in tensors.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_engine_gets_staged_weights_in_pieces_and_nothing_of_the_optimizer(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(state, "_PIECE", 64)
    tensors, stage = write(tmp_path, 3), WeightStage()
    assert stage_weights(tmp_path, stage, dtype) == 5 == stage.version and stage.complete
    staged = stage.weights()
    assert staged.keys() == SHAPES.keys()
    assert all(torch.equal(staged[name], tensors[f"weights.{name}"].to(dtype)) for name in SHAPES)
    assert sum(reads.by_file.values()) == sum(tensors[f"weights.{name}"].nbytes for name in SHAPES)
    assert reads.largest <= 2 * 64  # as float32
    stage.close()
