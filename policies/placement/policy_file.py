"""Policy files: a network's weights and its configuration, as data. Loading one runs no code.

A file is in safetensors format (float32) with the JSON of a `PolicyConfig` in its header under `rollmux`. Weights and configuration
are in one file so that they cannot be mixed up. The file is written atomically.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.placement.scorer import weight_sizes
from rollmux_env.errors import InputError
from rollmux_env.files import read_file, write_whole
from rollmux_env.keys.queue import Known
from rollmux_env.validation_errors import format_error, one_line, problems

LARGEST_BYTES = 64 * 2**20
_KEY = "rollmux"
_Name = Annotated[str, Field(min_length=1, max_length=64)]
_Names = Annotated[tuple[_Name, ...], Field(max_length=512)]
Features = tuple[Sequence[str], Sequence[str], Sequence[str]]
"""Names of the features of the job, of a row and of the cluster."""
Decides = Literal["placement", "dispatch", "rollout", "queue"]
"""Kind of policy."""
Provenance = dict[str, str | int | float]
"""Origin of a network: command, seeds, steps, and further notes of its author."""


class PolicyConfig(BaseModel):
    """Input features and provenance of a network.

    Attributes:
        version: Version of the file format.
        decides: Kind of policy: `placement`, `dispatch`, `rollout` or `queue`.
        job_features: Names of the job's features, in the network's order.
        candidate_features: Names of each row's features, in the network's order.
        cluster_features: Names of the cluster's features, in the network's order.
        widths: Width of each layer.
        moves: Whether the network was trained to move running jobs.
        known_stays: Whether the network reads when jobs will leave.
        known: Track of a policy for the queue: what it knows of the lengths of jobs.
        parks: Whether a policy for the queue was trained to park running jobs.
        provenance: Origin of the network: command, seeds, steps, and further notes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    version: Literal[1] = 1
    decides: Decides = "placement"
    job_features: _Names
    candidate_features: _Names
    cluster_features: _Names
    widths: Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=1, max_length=16)]
    moves: bool = False
    known_stays: bool = True
    known: Known = "lengths"
    parks: bool = False
    provenance: Provenance = {}

    @classmethod
    def of(cls, features: Features, widths: Sequence[int], provenance: Provenance, **more: Any) -> PolicyConfig:
        """Create the configuration of a network with these features and layer widths. `more` are values of other fields."""
        job, candidate, cluster = map(tuple, features)
        return cls(
            job_features=job,
            candidate_features=candidate,
            cluster_features=cluster,
            widths=tuple(widths),
            provenance=provenance,
            **more,
        )

    @property
    def features(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Names of the features of the job, of a row and of the cluster, each in the network's order."""
        return self.job_features, self.candidate_features, self.cluster_features

    def weight_sizes(self) -> dict[str, tuple[int, ...]]:
        """Return the dimensions of every weight by name."""
        job, candidate, cluster = map(len, self.features)
        return weight_sizes(job, candidate, cluster, self.widths)


def write_policy(path: str | Path, config: PolicyConfig, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Write a policy file atomically.

    Args:
        path: Path of the file.
        config: Features and provenance of the network.
        weights: Weights by name as NumPy arrays, with the names of `trainers.network.Scorer.state_dict()`.

    Raises:
        InputError: The weights do not fit the configuration, or the file cannot be written.
    """
    from safetensors.numpy import save

    name = one_line(str(path), 4096)
    arrays = {key: np.ascontiguousarray(weights[key], dtype=np.float32) for key in sorted(weights)}
    _check(name, config, {key: ("F32", array.shape) for key, array in arrays.items()})
    _check_finite(name, arrays)
    write_whole(path, save(arrays, metadata={_KEY: config.model_dump_json()}))


def read_config(path: str | Path) -> PolicyConfig:
    """Read the configuration of a policy file.

    Raises:
        InputError: The file is unreadable or damaged.
    """
    return _read(path)[2]


def read_policy(path: str | Path, decides: Decides = "placement") -> tuple[PolicyConfig, dict[str, NDArray[np.float32]]]:
    """Read a policy file.

    Args:
        path: Path of the file.
        decides: Kind of policy that the file must contain.

    Raises:
        InputError: The file is unreadable, damaged or of another kind, or the weights do not fit the configuration.
    """
    name = one_line(str(path), 4096)
    data, header, config = _read(path)
    if config.decides != decides:
        raise InputError(f"{name}: is a policy for {config.decides}, not for {decides}")
    layout: dict[str, tuple[object, object]] = {}
    for key, entry in header.items():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        layout[key] = (entry.get("dtype"), tuple(shape)) if isinstance(entry, dict) and isinstance(shape, list) else (None, None)
    _check(name, config, layout)
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        weights = load(data)
    except SafetensorError as error:
        raise InputError(f"{name}: is damaged: {one_line(str(error))}") from None
    _check_finite(name, weights)
    return config, weights


def read_known(
    path: str | Path, decides: Decides, known: Sequence[Features]
) -> tuple[PolicyConfig, dict[str, NDArray[np.float32]]]:
    """Read a policy file whose network reads features of this version.

    Args:
        path: Path of the file.
        decides: Kind of policy that the file must contain.
        known: Feature lists that this version supports.

    Raises:
        InputError: The file is not valid, as for `read_policy`, or the network reads other features.
    """
    config, weights = read_policy(path, decides)
    if config.features not in known:
        raise InputError(f"{path}: rollmux: reads other features than this version of RollMux gives")
    return config, weights


def read_default(
    path: str, decides: Literal["dispatch", "rollout"], known: Sequence[Features]
) -> tuple[Path, PolicyConfig, dict[str, NDArray[np.float32]]]:
    """Read the policy file of a path, or the one that RollMux ships if the path is `default`.

    Args:
        path: Path of the file, or `default`.
        decides: Kind of policy that the file must contain.
        known: Feature lists that this version supports.

    Raises:
        InputError: The file is not valid, as for `read_known`.
    """
    file = Path(str(files(f"policies.{decides}") / "weights" / "default.safetensors")) if path == "default" else Path(path)
    return file, *read_known(file, decides, known)


def _read(path: str | Path) -> tuple[bytes, dict[str, object], PolicyConfig]:
    """Return the bytes of a policy file, the layout of its weights, and its configuration."""
    name = one_line(str(path), 4096)
    if Path(path).is_dir():
        trained = [*Path(path).glob("best.safetensors"), *sorted(Path(path).glob("seed-*/best.safetensors"))]
        training = f"; of a training it is {one_line(str(trained[0]), 4096)}" if trained else ""
        raise InputError(f"{name}: is a folder, not a policy file{training}")
    data = read_file(path, LARGEST_BYTES)
    header = _header(name, data)
    return data, header, _config(name, header.pop("__metadata__", None))


def _header(name: str, data: bytes) -> dict[str, object]:
    """Parse the JSON at the start of a safetensors file: 8 bytes with its length, then the text."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size].decode()) if 0 < size <= len(data) - 8 else None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise InputError(f"{name}: is not a policy file, or damaged: it has no safetensors header")
    return header


def _config(name: str, metadata: object) -> PolicyConfig:
    text = metadata.get(_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise InputError(f"{name}: is no policy file of rollmux: its header has no '{_KEY}'")
    try:
        return PolicyConfig.model_validate_json(text)
    except ValidationError as error:
        if any(problem["loc"] == ("progress",) for problem in problems(error)):
            raise InputError(f"{name}: is the checkpoint of a training; best.safetensors beside it is its policy file") from None
        raise InputError(f"{name}: {format_error(problems(error)[0], PolicyConfig, _KEY)}") from None


def _check(name: str, config: PolicyConfig, layout: Mapping[str, tuple[object, object]]) -> None:
    """Compare types and dimensions of the weights with the configuration."""
    wanted = config.weight_sizes()
    if 4 * sum(math.prod(size) for size in wanted.values()) > LARGEST_BYTES:
        raise InputError(f"{name}: rollmux.widths: asks for more than {LARGEST_BYTES // 2**20} MB of weights")
    for key in sorted(wanted.keys() | layout.keys()):
        if key not in layout:
            raise InputError(f"{name}: {key}: is missing")
        if key not in wanted:
            raise InputError(f"{name}: {one_line(key, 60)}: is not a weight of this network")
        if layout[key] != ("F32", wanted[key]):
            shown = one_line(f"{layout[key][0]} {layout[key][1]}", 80)
            raise InputError(f"{name}: {key}: must be F32 {wanted[key]}, not {shown}")


def _check_finite(name: str, weights: Mapping[str, NDArray[np.float32]]) -> None:
    for key, array in weights.items():
        if not np.isfinite(array).all():
            raise InputError(f"{name}: {key}: holds numbers that are not finite")
