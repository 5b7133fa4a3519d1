"""The files of a checkpoint of the built-in job.

For each rank its shards, as safetensors, and the counts that belong to them; and where the job is in its data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.files import write_whole
from runtime.checkpoints import write_hashed

if TYPE_CHECKING:
    from torch import Tensor

_INFO = "training.json"
_DATA = "data.json"
_KINDS = ("weights", "exp_avg", "exp_avg_sq")


class Data(NamedTuple):
    """Where a job is in its data.

    Attributes:
        position: the first prompt that no round has taken yet. queue: prompts that were taken and put off.
        anchors: of the rewards' timeout, {test: seconds}.
    """

    position: int
    queue: list[int]
    anchors: dict[str, float]


def write_data(folder: Path, data: Data) -> None:
    """Write it.

    Raises:
        OSError: the disk is full, or the folder is not there.
    """
    write_whole(folder / _DATA, json.dumps(data._asdict()))


def read_data(folder: Path) -> Data:
    """As it was written."""
    return Data(**{"anchors": {}} | json.loads((folder / _DATA).read_text()))  # older ones have none


def write_shards(folder: Path, rank: int, shards: Mapping[str, Tensor], info: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """Write what a rank has to the disk, without a copy of it in memory; rank 0 writes the counts too.

    Returns:
        Bytes and SHA-256 of its shards, by the file's name, taken while they were written.

    Raises:
        OSError: the disk is full, or the folder is not there.
    """
    from runtime.residency.layout import Layout
    from runtime.residency.staging import pieces

    layout = Layout.of(shards)
    if rank == 0:
        (folder / _INFO).write_text(json.dumps(dict(info)))
    content = (piece.numpy().data for _, piece in pieces(shards, layout))
    return {_name(rank): write_hashed(folder / _name(rank), chain([layout.header()], content))}


def read_state(
    folder: Path, kinds: tuple[str, ...] = ("weights", "exp_avg", "exp_avg_sq")
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Whole tensors, as `Trainer.load_state` wants them, and the counts.

    Args:
        kinds: of tensors: what stands before the first dot of their names.

    Raises:
        InputError: a rank's file is missing; one line.
    """
    import torch
    from safetensors import safe_open

    info = json.loads((folder / _INFO).read_bytes())
    shards: dict[str, list[Tensor]] = {}
    for rank in range(info["ranks"]):
        if not (folder / _name(rank)).is_file():
            raise InputError(f"{folder}: {_name(rank)} is missing")
        with safe_open(folder / _name(rank), "pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                if name.partition(".")[0] in kinds:
                    shards.setdefault(name, []).append(file.get_tensor(name))
    return {name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in shards.items()}, info


def _name(rank: int) -> str:
    return f"rank-{rank}.safetensors"
