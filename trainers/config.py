"""The configuration of a training run: a YAML preset or file, with values overridden on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rollmux_env.complaint import complain, field_of, misfit, problems
from rollmux_env.errors import InputError
from rollmux_env.held_out import FIRST_DRAWN_SEED
from rollmux_env.reading import read_mapping
from rollmux_env.suggestions import did_you_mean

Algorithm = Literal["maskable-ppo", "ppo", "dqn"]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]

LAST_SEED = 2**32 - 1  # that NumPy's global generator takes


class Settings(BaseModel):
    """A part of a configuration: no unknown keys, nothing converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class PPO(Settings):
    """Of `maskable-ppo` and `ppo`; names are those of Stable-Baselines3."""

    learning_rate: Positive = 3e-4
    """Of Adam."""
    linear: bool = False
    """The learning rate falls to 0 at the end."""
    n_steps: Count = 128
    """Decisions of each stream between updates."""
    batch_size: Annotated[int, Field(ge=2)] = 1024
    """Decisions of a gradient step; must divide streams times n_steps. Advantages are divided by their deviation in it."""
    n_epochs: Count = 4
    """Passes over the decisions of an update."""
    gamma: Share = 1.0
    """Of a decision, not of an hour: 1 is the dollars' own objective, as decisions come at irregular times."""
    gae_lambda: Share = 0.95
    """Of generalised advantages: 1 is what really followed, 0 what the network expects."""
    clip_range: Positive = 0.2
    """How far an update may move a choice's probability, as a share of it."""
    ent_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy bonus: more keeps the choices varied for longer."""
    vf_coef: Annotated[float, Field(ge=0)] = 0.5
    """Weight of the value's loss."""
    max_grad_norm: Positive = 0.5
    """Longer gradients are shortened to this."""
    target_kl: Positive | None = None
    """An update stops early where the policy has moved by this KL divergence; null: never."""


class DQN(Settings):
    """Of `dqn`; names are those of Stable-Baselines3."""

    learning_rate: Positive = 3e-4
    """Of Adam."""
    buffer_size: Count = 20_000
    """Decisions remembered; a checkpoint holds them all."""
    learning_starts: Count = 1_000
    """Decisions before the first gradient step."""
    batch_size: Count = 256
    """Memories of a gradient step."""
    train_freq: Count = 4
    """Decisions of each stream between updates."""
    gradient_steps: Count = 4
    """Between two rounds of decisions."""
    gamma: Share = 1.0
    """As `ppo.gamma`."""
    target_update_interval: Count = 2_000
    """Decisions between renewals of the copy that values what comes next."""
    exploration_fraction: Share = 0.3
    """Share of the run in which random choices fall to `exploration_final_eps`."""
    exploration_final_eps: Share = 0.02
    """Share of random choices from then on."""


class Evaluation(Settings):
    """Episodes with greedy choices on streams that training never draws."""

    first_seed: Annotated[int, Field(ge=0, lt=FIRST_DRAWN_SEED)] = 1000
    """Of the first held-out stream."""
    seeds: Count = 10
    """How many held-out streams, one episode each."""
    every: Count = 100_000
    """Decisions between evaluations."""
    references: tuple[str, ...] = ("solo", "rollmux")
    """Policies whose dollars on the same streams the learner's are compared with; `bench` computes them once."""

    @model_validator(mode="after")
    def _held_out(self) -> Evaluation:
        if self.first_seed + self.seeds > FIRST_DRAWN_SEED:
            raise misfit(f"seeds from {FIRST_DRAWN_SEED} on are drawn in training", "seeds")
        return self


class Start(Settings):
    """A policy file to go on from."""

    file: str
    """Its path."""
    sharpness: Positive = 1.0
    """Factor of its scores. PPO draws choices by their differences: the larger, the less it strays from the file's own choices."""


class Config(Settings):
    """A training run.

    `environment` is a mapping whose `name` says which environment (`placement`, `dispatch`); its other keys are that module's own.
    """

    algorithm: Algorithm = "maskable-ppo"
    """Who learns; see above."""
    steps: Count
    """Decisions in all, of all streams together."""
    streams: Count = 64
    """Environments side by side."""
    seed: Annotated[int, Field(ge=0, le=LAST_SEED)] = 0
    """Of the weights, the choices and the streams; `--seeds` counts on from it."""
    threads: Count = 1
    """Of torch; another number may round sums in another way."""
    widths: Annotated[tuple[Count, ...], Field(min_length=1)] = (64, 64)
    """Of the network's hidden layers."""
    start: Start | None = None
    """What the network knows at first; without it the weights are random."""
    environment: dict[str, Any]
    """What is learned: `name`, `placement` or `dispatch`, and the keys of that environment below."""
    ppo: PPO = PPO()
    """Of `maskable-ppo` and `ppo`."""
    dqn: DQN = DQN()
    """Of `dqn`."""
    evaluation: Evaluation = Evaluation()
    """On held-out streams."""
    checkpoint_every: Count = 100_000
    """Decisions between checkpoints."""

    @model_validator(mode="after")
    def _whole_batches(self) -> Config:
        if self.algorithm != "dqn" and self.ppo.n_steps * self.streams % self.ppo.batch_size:
            raise misfit("must divide streams times n_steps", "ppo", "batch_size")
        return self


def read_config(name: str, changes: Sequence[str] = ()) -> Config:
    """Read a preset or a file.

    Args:
        name: of a file of `trainers/presets` without its suffix, or the path of a YAML or JSON file.
        changes: `key=value`, keys as in `ppo.n_steps`, values as JSON writes them; other text is text.

    Raises:
        InputError: no such preset or file, or a value that does not fit; one line that names the file or the option, and the field.
    """
    presets = preset_names()
    path = Path(name)
    if name in presets:
        path = Path(str(files("trainers") / "presets" / f"{name}.yaml"))
    elif not path.suffix and not path.exists():
        near = did_you_mean(name, presets)
        raise InputError(f"{name}: is neither a file nor a preset; presets are {', '.join(presets)}{near}")
    data = read_mapping(path)
    keys = [_set(data, change) for change in changes]
    return check_config(data, name, keys)


def check_config(data: dict[str, Any], name: str, keys: Sequence[tuple[str, ...]] = ()) -> Config:
    """Check a mapping.

    Args:
        name: of the file, for errors. keys: fields that options have set, whose errors name the option instead.

    Raises:
        InputError: as `read_config`.
    """
    try:
        return Config.model_validate_json(json.dumps(data))  # JSON: a list is as good as a tuple there
    except ValidationError as error:
        first = problems(error)[0]
        at = field_of(first)
        where = "--set" if any(at[: len(key)] == key or key[: len(at)] == at for key in keys) and at else name
        raise InputError(f"{where}: {complain(first, Config)}") from None
    except ValueError as error:  # a number that JSON does not have
        raise InputError(f"{name}: {error}") from None


def preset_names() -> list[str]:
    """Names of the presets that come with RollMux."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in (files("trainers") / "presets").iterdir() if entry.name.endswith(".yaml")
    )


def _set(data: dict[str, Any], change: str) -> tuple[str, ...]:
    """Carry out `key.key=value`; returns the keys."""
    name, equals, text = change.partition("=")
    keys = tuple(name.split("."))
    if not equals or not all(keys):
        raise InputError(f"--set {change}: is not of the form key=value")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    at = data
    for key in keys[:-1]:
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            raise InputError(f"--set {name}: {key} is not a mapping")
    at[keys[-1]] = value
    return keys
