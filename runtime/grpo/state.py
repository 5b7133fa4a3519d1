"""Files of a checkpoint of the built-in job.

A checkpoint contains the shards of each rank, as safetensors, with the counts that belong to them, and the position in the data.

Jobs with a staleness add the responses that were sampled but not trained on yet, with the version of every token. `samples.json`
lists them, and `samples.safetensors` contains the numbers. For each engine's share of a rollout, these are the tokens of all
prompts and of all responses one after the other, their lengths, log-probs, versions and rewards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from rollmux_env.errors import InputError
from rollmux_env.files import write_whole
from runtime.checkpoints import write_hashed
from runtime.engines.interface import Response
from runtime.grpo.messages import RolloutSamples, SampledRollout, ShareSamples
from runtime.phases import IterationReports

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from runtime.residency.staging import WeightStage

_INDEX, _NUMBERS = "samples.json", "samples.safetensors"
_Arrays = dict[str, NDArray[Any]]
_INFO = "training.json"
_DATA = "data.json"
_KINDS = ("weights", "exp_avg", "exp_avg_sq")
_PIECE = 64 << 20  # number of bytes that are read and cast at a time


class DataPosition(NamedTuple):
    """Position of a job in its data.

    Attributes:
        position: Number of the first prompt that no round has taken yet.
        queue: Numbers of prompts that were taken and put off.
        anchors: Anchors of the rewards' timeout, in seconds, by test.
    """

    position: int
    queue: list[int]
    anchors: dict[str, float]


def write_data(folder: Path, data: DataPosition) -> None:
    """Write the position of a job in its data.

    Args:
        folder: Folder of the checkpoint.
        data: The position.

    Raises:
        OSError: The disk is full, or the folder does not exist.
    """
    write_whole(folder / _DATA, json.dumps(data._asdict()))


def read_data(folder: Path) -> DataPosition:
    """Read what `write_data` has written."""
    return DataPosition(**{"anchors": {}} | json.loads((folder / _DATA).read_text()))  # older checkpoints have no anchors


def write_shards(folder: Path, rank: int, shards: Mapping[str, Tensor], info: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """Write the shards of a rank without a copy of them in memory. Rank 0 also writes the counts.

    Args:
        folder: Folder of the checkpoint.
        rank: Number of the rank.
        shards: Tensors of the rank, by name.
        info: Counts of the training.

    Returns:
        Size in bytes and SHA-256 of the shards' file, by its name, computed while it was written.

    Raises:
        OSError: The disk is full, or the folder does not exist.
    """
    from runtime.residency.layout import WeightLayout
    from runtime.residency.staging import pieces

    layout = WeightLayout.of(shards)
    if rank == 0:
        (folder / _INFO).write_text(json.dumps(dict(info)))
    content = (piece.numpy().data for _, piece in pieces(shards, layout))
    return {_name(rank): write_hashed(folder / _name(rank), chain([layout.header()], content))}


class ShardedTensor:
    """A tensor of a checkpoint, of which each rank has written some rows. Only rows that are asked for are read.

    Args:
        parts: Slices of safetensors files that contain the rows, in order.

    Attributes:
        shape: Shape of the whole tensor.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        counts = [part.get_shape()[0] for part in parts]
        self._ends = [*accumulate(counts)]
        self.shape = (self._ends[-1], *parts[0].get_shape()[1:])

    def __getitem__(self, rows: slice) -> Tensor:
        """Read some rows into host memory."""
        import torch

        first, last, _ = rows.indices(self.shape[0])
        inside = [
            part[max(first, begin) - begin : min(last, end) - begin]
            for part, (begin, end) in zip(self._parts, pairwise([0, *self._ends]), strict=True)
            if max(first, begin) < min(last, end)
        ]
        if not inside:
            return torch.empty(0, *self.shape[1:])
        return inside[0] if len(inside) == 1 else torch.cat(inside)


def read_state(folder: Path, kinds: tuple[str, ...] = _KINDS) -> tuple[dict[str, ShardedTensor], dict[str, Any]]:
    """Open the tensors of a checkpoint, for `Trainer.load_state`, and read its counts. No tensor data is read yet.

    Args:
        folder: Folder of the checkpoint.
        kinds: Kinds of tensors to open: parts of their names before the first dot.

    Returns:
        Tensors by name, and the counts of the training.

    Raises:
        InputError: A rank's file is missing. The message is one line.
    """
    from safetensors import safe_open

    info = json.loads((folder / _INFO).read_bytes())
    parts: dict[str, list[Any]] = {}
    for rank in range(info["ranks"]):
        if not (folder / _name(rank)).is_file():
            raise InputError(f"{folder}: {_name(rank)} is missing")
        file: Any = safe_open(folder / _name(rank), "pt")  # stays mapped while a slice of it exists
        for name in file.keys():  # noqa: SIM118 (it is not a mapping)
            if name.partition(".")[0] in kinds:
                parts.setdefault(name, []).append(file.get_slice(name))
    return {name: ShardedTensor(own) for name, own in parts.items()}, info


def stage_weights(folder: Path, stage: WeightStage, dtype: torch.dtype) -> int:
    """Stage the weights of a checkpoint as if a sync had brought them, some rows at a time.

    Args:
        folder: Folder of the checkpoint.
        stage: Stage that receives them.
        dtype: Data type to convert them to.

    Returns:
        Version of the weights.
    """
    import torch

    from runtime.residency.layout import WeightLayout

    tensors, info = read_state(folder, ("weights",))
    weights = {name.removeprefix("weights."): rows for name, rows in tensors.items()}
    layout = WeightLayout.of({name: torch.empty(rows.shape, dtype=dtype, device="meta") for name, rows in weights.items()})
    version = int(info["updates"])
    stage.begin(layout, version)
    for name, _, shape, start, end in layout.tensors:
        row_bytes = (end - start) // max(1, shape[0])
        step = max(1, _PIECE // max(1, row_bytes))
        for first in range(0, shape[0], step):
            piece = weights[name][first : first + step].to(dtype).contiguous().flatten().view(torch.uint8)
            stage.receive(version, start + first * row_bytes, piece)
    return version


def write_rollouts(folder: Path, version: int, rollouts: Sequence[SampledRollout], fetch: Callable[[Any], Any]) -> None:
    """Write the rollouts that wait for their training.

    Args:
        folder: Folder of the checkpoint.
        version: Version of the weights.
        rollouts: The rollouts, the oldest first.
        fetch: Function that returns the results of workers' calls, as `runtime_hook.wait`.

    Raises:
        OSError: The disk is full, or the folder does not exist.
    """
    index: list[dict[str, Any]] = []
    arrays: _Arrays = {}
    for rollout in rollouts:
        shares = [share for engine in _values(rollout.rolled.samples, fetch) for share in engine]
        for share in shares:
            arrays |= {f"{rollout.number}.{share.place}.{name}": values for name, values in _arrays(share).items()}
        places = [share.place for share in shares]
        known = {"complete": [*rollout.rolled.complete], "metrics": rollout.reported.metrics}
        index.append({"number": rollout.number, "places": places, **known})
    if arrays:
        write_hashed(folder / _NUMBERS, [save(arrays)])  # `save_file` raises no OSError when the disk is full
    write_whole(folder / _INDEX, json.dumps({"version": version, "rollouts": index}))


def read_rollouts(folder: Path) -> tuple[int, list[SampledRollout]]:
    """Read what `write_rollouts` has written.

    Returns:
        Version of the weights, and the rollouts, the oldest first.

    Raises:
        InputError: The checkpoint is of a job without a staleness. The message is one line.
    """
    if not (folder / _INDEX).is_file():
        raise InputError(f"{folder}: {_INDEX} is missing: the checkpoint is of a job without a staleness")
    known = json.loads((folder / _INDEX).read_bytes())
    arrays: _Arrays = load_file(folder / _NUMBERS) if any(one["places"] for one in known["rollouts"]) else {}
    rollouts = []
    for one in known["rollouts"]:
        shares = [_share(place, arrays, f"{one['number']}.{place}.") for place in one["places"]]
        reported = IterationReports()
        reported.metrics.update(one["metrics"])
        rollouts.append(SampledRollout(one["number"], RolloutSamples((shares,), one["complete"]), reported))
    return known["version"], rollouts


def _values(samples: Sequence[Any], fetch: Callable[[Any], Any]) -> list[list[ShareSamples]]:
    """Return what each engine has sampled: fetched from workers, or already present if it comes from a checkpoint."""
    calls = [one for one in samples if not isinstance(one, list)]
    fetched = iter(fetch(calls) if calls else ())
    return [one if isinstance(one, list) else next(fetched) for one in samples]


def _arrays(share: ShareSamples) -> _Arrays:
    prompts, responses = share.prompts, share.responses
    return {
        "prompts": _joined(prompts, np.int64),
        "prompt_lengths": np.array([len(prompt) for prompt in prompts], np.int64),
        "tokens": _joined([response.token_ids for response in responses], np.int64),
        "lengths": np.array([len(response.token_ids) for response in responses], np.int64),
        "logprobs": _joined([response.logprobs for response in responses], np.float64),
        "versions": _joined([response.versions for response in responses], np.int64),
        "rewards": np.array(share.rewards, np.float64),
    }


def _joined(rows: Sequence[Sequence[Any]], kind: type[Any]) -> NDArray[Any]:
    return np.concatenate([np.array(row, kind) for row in rows]) if rows else np.zeros(0, kind)


def _share(place: int, arrays: _Arrays, prefix: str) -> ShareSamples:
    values = {name: arrays[prefix + name] for name in ("prompts", "tokens", "logprobs", "versions", "rewards")}
    prompts = _rows(values["prompts"], arrays[prefix + "prompt_lengths"])
    lengths = arrays[prefix + "lengths"]
    tokens, logprobs, versions = (_rows(values[name], lengths) for name in ("tokens", "logprobs", "versions"))
    responses = [_response(k, *parts) for k, parts in enumerate(zip(tokens, logprobs, versions, strict=True))]
    return ShareSamples(place, tuple(prompts), tuple(responses), tuple(values["rewards"].tolist()))


def _response(number: int, tokens: tuple[int, ...], logprobs: tuple[float, ...], versions: tuple[int, ...]) -> Response:
    last = versions[-1]
    return Response(number, tokens, logprobs, True, last, tuple(version for version in versions if version != last))


def _rows(values: NDArray[Any], lengths: NDArray[Any]) -> list[tuple[Any, ...]]:
    ends = [0, *np.cumsum(lengths).tolist()]
    return [tuple(values[first:end].tolist()) for first, end in pairwise(ends)]


def _name(rank: int) -> str:
    return f"rank-{rank}.safetensors"
