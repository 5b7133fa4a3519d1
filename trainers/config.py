"""The configuration of a training run: a YAML preset or file, with values overridden on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError
from rollmux_env.portable import FIRST_DRAWN_SEED
from rollmux_env.reading import read_mapping
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import field_error, field_of, format_error, not_one_of, problems

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]

LAST_SEED = 2**32 - 1  # largest seed that NumPy's global generator accepts


class Settings(BaseModel):
    """Part of a configuration: no unknown keys, no conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class PPO(Settings):
    """Settings of PPO, with the names of Stable-Baselines3."""

    learning_rate: Positive = 3e-4
    """Learning rate of Adam."""
    linear: bool = False
    """Whether the learning rate decreases linearly to 0."""
    batch_size: Annotated[int, Field(ge=2)] = 1024
    """Number of decisions per gradient step."""
    n_epochs: Count = 4
    """Number of passes over the decisions of an update."""
    clip_range: Positive = 0.2
    """Largest relative change of a choice's probability in an update."""
    ent_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Positive = 0.5
    """Maximum norm of a gradient."""


class GroupSettings(PPO):
    """Settings of PPO with a group baseline."""

    gamma: Share = 0.97
    """Discount per unit of progress: a mean arrival (placement and queue; an hour if all jobs come at once), a planned period
    (dispatch), a rollout (rollout)."""
    copies: Annotated[int, Field(ge=2)] = 8
    """Number of copies of each drawn stream, a divisor of `streams`."""


class MaskableSettings(PPO):
    """Settings of PPO with a critic."""

    n_steps: Count = 128
    """Number of decisions per stream between updates; `batch_size` must divide streams * n_steps."""
    gamma: Share = 1.0
    """Discount per decision; 1 optimises dollars."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation."""
    vf_coef: Annotated[float, Field(ge=0)] = 0.5
    """Weight of the value loss."""
    target_kl: Positive | None = None
    """KL divergence at which an update stops early; null is no limit."""


class Evaluation(Settings):
    """Greedy episodes on streams that training never draws."""

    first_seed: Annotated[int, Field(ge=0, lt=FIRST_DRAWN_SEED)] = 1000
    """Seed of the first held-out stream."""
    seeds: Count = 10
    """Number of held-out streams, one episode each."""
    every: Count = 100_000
    """Number of decisions between evaluations."""
    references: tuple[str, ...] = ("solo", "rollmux")
    """Policies to compare with on the same streams, also `masked-random` and `untrained`."""

    @model_validator(mode="after")
    def _held_out(self) -> Evaluation:
        if self.first_seed + self.seeds > FIRST_DRAWN_SEED:
            raise field_error(f"seeds from {FIRST_DRAWN_SEED} on are drawn in training", "seeds")
        return self


class Start(Settings):
    """A policy file to start from."""

    file: str
    """Path of a policy file."""
    sharpness: Positive = 1.0
    """Factor on the scores of the file; a larger one keeps PPO closer to its choices."""


class Config(Settings):
    """Configuration of a training run.

    `environment` is a mapping. Its `name` selects the environment (`placement`, `dispatch`, `rollout`, `queue`), which defines the
    other keys.
    """

    steps: Count
    """Total number of decisions over all streams."""
    streams: Count = 128
    """Number of parallel environments."""
    seed: Annotated[int, Field(ge=0, le=LAST_SEED)] = 0
    """Seed of weights, choices and streams; `--seeds` counts up from it."""
    threads: Count = 1
    """Number of threads of torch; it may change rounding."""
    widths: Annotated[tuple[Count, ...], Field(min_length=1)] = (64, 64)
    """Sizes of the hidden layers."""
    start: Start | None = None
    """Policy file whose weights the training starts from; null: random weights."""
    environment: dict[str, Any]
    """Environment: its `name`, `placement`, `dispatch`, `rollout` or `queue`, and its keys."""
    evaluation: Evaluation = Evaluation()
    """Evaluation on held-out streams."""
    checkpoint_every: Count = 100_000
    """Number of decisions between checkpoints."""


class GroupPPOConfig(Config):
    """Configuration of a run of `trainers.group_ppo`."""

    algorithm: Literal["group-ppo"] = "group-ppo"
    """PPO whose baseline is what other copies of the same stream gained (`trainers/group_ppo.py`)."""
    ppo: GroupSettings = GroupSettings()
    """Settings of PPO."""

    @model_validator(mode="after")
    def _whole_groups(self) -> GroupPPOConfig:
        if self.streams % self.ppo.copies:
            raise field_error("must divide streams", "ppo", "copies")
        return self


class MaskablePPOConfig(Config):
    """Configuration of a run of sb3-contrib's MaskablePPO."""

    algorithm: Literal["maskable-ppo"] = "maskable-ppo"
    """PPO with a critic, of sb3-contrib."""
    ppo: MaskableSettings = MaskableSettings()
    """Settings of PPO."""

    @model_validator(mode="after")
    def _whole_batches(self) -> MaskablePPOConfig:
        if self.ppo.n_steps * self.streams % self.ppo.batch_size:
            raise field_error("must divide streams times n_steps", "ppo", "batch_size")
        return self

    @model_validator(mode="after")
    def _resumes(self) -> MaskablePPOConfig:
        if self.environment.get("name") == "queue":  # a checkpoint holds no stream of it that is under way
            raise field_error("queue is trained with group-ppo, whose updates are whole episodes", "algorithm")
        return self


AnyConfig = GroupPPOConfig | MaskablePPOConfig
ALGORITHMS: dict[str, type[AnyConfig]] = {"group-ppo": GroupPPOConfig, "maskable-ppo": MaskablePPOConfig}
"""Configuration of each learning algorithm, by the name under `algorithm`."""


def read_config(name: str, changes: Sequence[str] = (), swept: Sequence[str] = ()) -> AnyConfig:
    """Read a preset or a file.

    Args:
        name: Name of a file of `trainers/presets` without its suffix, or the path of a YAML or JSON file.
        changes: Changes of the form `key=value`, with keys as in `ppo.n_steps`. A value is parsed as JSON if possible, else taken
            as text.
        swept: Further changes, which come from `--sweep`.

    Raises:
        InputError: There is no such preset or file, or a value is not valid. The message names the file or option, and the field.
    """
    presets = preset_names()
    path = Path(name)
    if name in presets:
        path = Path(str(files("trainers") / "presets" / f"{name}.yaml"))
    elif not path.suffix and not path.exists():
        near = did_you_mean(name, presets)
        raise InputError(f"{name}: is neither a file nor a preset; presets are {', '.join(presets)}{near}")
    data = read_mapping(path)
    if data.keys() >= {"cluster", "jobs"}:
        raise InputError(
            f"{name}: is a scenario file, not a configuration; "
            f"`rollmux train production --set environment.workload={name} --set environment.options={{}}` trains on its jobs"
        )
    keys = {
        _set(data, key, parse_value(text), option): option
        for option, pairs in (("--set", changes), ("--sweep", swept))
        for key, text in parse_pairs(option, pairs)
    }
    return check_config(data, name, keys)


def check_config(data: dict[str, Any], name: str, keys: Mapping[tuple[str, ...], str] | None = None) -> AnyConfig:
    """Validate a mapping.

    Args:
        data: The configuration as read from a file.
        name: Name of the file, for error messages.
        keys: Option that set each field, for those that options have set. Errors in them name the option instead of the file.

    Raises:
        InputError: A value is not valid. The message names the file or option, and the field.
    """
    keys, algorithm = keys or {}, data.get("algorithm", "group-ppo")
    model = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
    if model is None:
        raise InputError(f"{keys.get(('algorithm',), name)}: algorithm: {not_one_of(algorithm, ALGORITHMS)}")
    try:
        return model.model_validate_json(json.dumps(data))  # via JSON, where strict mode accepts a list as a tuple
    except ValidationError as error:
        first = problems(error)[0]
        at = field_of(first)
        options = (option for key, option in keys.items() if at and (at[: len(key)] == key or key[: len(at)] == at))
        where = next(options, name)
        raise InputError(f"{where}: {format_error(first, model)}") from None
    except ValueError as error:  # a number that JSON cannot represent
        raise InputError(f"{name}: {error}") from None


def preset_names() -> list[str]:
    """Return the names of the presets."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in (files("trainers") / "presets").iterdir() if entry.name.endswith(".yaml")
    )


def _set(data: dict[str, Any], name: str, value: Any, option: str) -> tuple[str, ...]:
    """Set the value of a nested key such as `ppo.n_steps`, and return the parts of the key."""
    keys = tuple(name.split("."))
    at = data
    for key in keys[:-1]:
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            raise InputError(f"{option} {name}: {key} is not a mapping")
    at[keys[-1]] = value
    return keys
