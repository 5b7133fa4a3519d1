"""One training run: rollouts and updates, with evaluations, checkpoints and figures in between."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from policies.placement.policy_file import Provenance, write_policy
from rollmux_env.files import write_whole
from rollmux_env.report.loggers import FigureLogger, MakeLogger
from trainers.checkpoint import load_checkpoint, save_checkpoint
from trainers.config import AnyConfig
from trainers.export import config_of
from trainers.group_ppo import group_ppo
from trainers.maskable_ppo import begin_with, maskable_ppo
from trainers.network import Scorer
from trainers.problem import Figures, Problem
from trainers.vec_env import NativeVecEnv, Observation, play

CHECKPOINT, LAST, BEST, CURVE = "checkpoint.safetensors", "last.safetensors", "best.safetensors", "curve.csv"

_OF_DECISIONS = {"action_mask", "choices_left_out", "discount", "invalid_action", "truncated"}  # not of whole episodes
_NO_FIGURES = {"stream_seed", "terminal_observation", "TimeLimit.truncated", "episode", *_OF_DECISIONS}
"""Keys of an ended episode's info that are no figures of the episode."""

_MIN_LOG_INTERVAL = 4096  # least number of decisions between figures on TensorBoard

Tell = Callable[[int, Sequence[dict[str, float]]], None]
Learner = Callable[[Any, Problem, int], Any]
"""Function that creates an untrained model of Stable-Baselines3 for a configuration, a problem and a seed."""

LEARNERS: dict[str, Learner] = {"group-ppo": group_ppo, "maskable-ppo": maskable_ppo}
"""Learning algorithms by their name under `algorithm`."""


@dataclass(frozen=True)
class TrainingRun:
    """Inputs of the training run of one seed.

    Attributes:
        config: The configuration.
        problem: The learning problem.
        references: Dollars of the references, as returned by `trainers.runs.find_references`.
        seed: Seed of the run.
        folder: Folder for `checkpoint.safetensors`, the policy files `last.safetensors` and `best.safetensors`, `curve.csv` (every
            evaluation), and TensorBoard's events.
        tell: Function that receives the number of decisions so far and the figures of every evaluation so far.
        learner: Function that creates the model, or None for that of the configuration. Its name is recorded in the policy files.
        logger: Function that makes a logger beside TensorBoard from the folder, or None.
    """

    config: AnyConfig
    problem: Problem
    references: Figures
    seed: int
    folder: Path
    tell: Tell
    learner: Learner | None = None
    logger: MakeLogger | None = None


def train(run: TrainingRun, resume: bool = False) -> list[dict[str, float]]:
    """Train, and write all results into the folder.

    Args:
        run: Inputs of the run.
        resume: Whether to continue from the folder's checkpoint, exactly as if the run had not stopped. Without a checkpoint the
            run starts from the beginning.

    Returns:
        The figures of every evaluation, with `steps`.

    Raises:
        InputError: The checkpoint is damaged, the start file does not fit, or the folder cannot be written.
    """
    torch.set_num_threads(run.config.threads)
    learner = run.learner or LEARNERS[run.config.algorithm]
    model = learner(run.config, run.problem, run.seed)
    model.get_env().seed(run.seed * run.config.streams)  # consecutive runs have no source of stream seeds in common
    callback = _RunCallback(run)
    file = run.folder / CHECKPOINT
    resumed = resume and file.exists()
    if resumed:
        callback.load(load_checkpoint(file, model))
    elif run.config.start:
        begin_with(model.policy.scorer, run.config.start, config_of(callback.held_out, run.config.widths, {}))
    own = [LoggerWriter(run.logger(run.folder))] if run.logger is not None else []  # before TensorBoard begins a thread
    logger = Logger(None, [TensorBoard(run.folder, model.num_timesteps if resumed else None), *own])
    model.set_logger(logger)
    left = run.config.steps - model.num_timesteps
    try:
        if left > 0:
            model.learn(left, callback=callback, log_interval=None, reset_num_timesteps=not resumed)
    finally:
        logger.close()
        model.get_env().close()
    return callback.curve


def evaluate(problem: Problem, env: VectorEnv[Any, Any, Any], model: Any, first_seed: int, references: Figures) -> dict[str, float]:
    """Play one greedy episode on every held-out stream, and return its figures. Nothing is drawn at random.

    Args:
        problem: The learning problem.
        env: Environment without autoreset, with one stream for each seed.
        model: Model of Stable-Baselines3.
        first_seed: Seed of the first stream.
        references: Dollars of the references on the same streams.
    """

    def choose(observation: Observation) -> NDArray[np.int64]:
        return np.asarray(model.predict(observation, deterministic=True, action_masks=observation["mask"] > 0)[0])

    played = play(env, range(first_seed, first_seed + env.num_envs), choose)
    return problem.figures(env, played, references)


class LoggerWriter(KVWriter):
    """A logger of a user's as a writer: `Logger` passes over what is none.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: FigureLogger) -> None:
        self._logger = logger

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write the figures of a step."""
        self._logger.write(key_values, key_excluded, step)

    def close(self) -> None:
        """Close the logger."""
        self._logger.close()


class TensorBoard(TensorBoardOutputFormat):
    """SB3's TensorBoard writer, except that steps after a resumed run's checkpoint are not shown twice.

    Args:
        folder: Folder of the events.
        resumed_at: Decisions at the checkpoint from which the run is resumed, or None for a new run.
    """

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        first = 0 if resumed_at is None else resumed_at + 1  # figures at the checkpoint are older than it
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=first)
        self._is_closed = False


class _RunCallback(BaseCallback):
    """Evaluates, writes checkpoints and reports figures between two rollouts, each when it is due.

    Attributes:
        curve: Figures of every evaluation.
        best: Highest return of an evaluation.
        evaluated: Decisions at the last evaluation.
        saved: Decisions at the last checkpoint.
    """

    def __init__(self, run: TrainingRun) -> None:
        super().__init__()
        self.run = run
        self.held_out = run.problem.environment(run.config.evaluation.seeds, autoreset=False)
        self.curve: list[dict[str, float]] = []
        self.best = -np.inf
        self.evaluated = self.saved = -1
        self.episodes: list[dict[str, Any]] = []
        self.logged = 0
        self.began = self.seconds = self.env_seconds = 0.0

    def load(self, progress: dict[str, Any]) -> None:
        """Restore the progress that a checkpoint contains."""
        self.curve, self.best = progress["curve"], progress["best"]
        self.evaluated, self.saved = progress["evaluated"], progress["saved"]

    def _on_training_start(self) -> None:
        self.logged = self.num_timesteps
        self.env_seconds = self._env.seconds
        self.began = perf_counter()

    def _on_rollout_start(self) -> None:
        self._between_rollouts(last=False)

    def _on_rollout_end(self) -> None:
        buffer = getattr(self.model, "rollout_buffer", None)
        for name in ("returns", "values", "advantages") if buffer is not None else ():
            values = getattr(buffer, name)
            self.logger.record(f"train/{name}_mean", float(values.mean()))
            self.logger.record(f"train/{name}_std", float(values.std()))

    def _on_training_end(self) -> None:
        self._between_rollouts(last=True)

    def _on_step(self) -> bool:
        self.episodes += [self.locals["infos"][s] for s in np.flatnonzero(self.locals["dones"])]
        return True

    @property
    def _env(self) -> NativeVecEnv:
        assert isinstance(self.training_env, NativeVecEnv)
        return self.training_env

    def _between_rollouts(self, last: bool) -> None:
        self.seconds += perf_counter() - self.began  # time of rollouts and updates, without that of this method
        steps, config = self.model.num_timesteps, self.run.config
        due = steps > self.evaluated and (last or _has_passed(self.evaluated, steps, config.evaluation.every))
        if due or steps >= self.logged + _MIN_LOG_INTERVAL:
            speed = self._record_training(steps)
            if due:
                self._evaluate(steps, speed)
            self.logger.dump(steps)
        if last or _has_passed(self.saved, steps, config.checkpoint_every):
            self.saved = steps
            progress = {"curve": self.curve, "best": self.best, "evaluated": self.evaluated, "saved": self.saved}
            save_checkpoint(self.run.folder / CHECKPOINT, self.model, progress)
        self.run.tell(steps, self.curve)
        self.began = perf_counter()

    def _evaluate(self, steps: int, speed: dict[str, float]) -> None:
        run = self.run
        self.evaluated = steps
        figures = evaluate(run.problem, self.held_out, self.model, run.config.evaluation.first_seed, run.references)
        for name, value in figures.items():
            self.logger.record(f"evaluation/{name}", value)
        self.curve.append({"steps": steps, **figures, **speed})
        self._write(LAST, steps, figures)
        if figures["return"] > self.best:
            self.best = figures["return"]
            self._write(BEST, steps, figures)
        write_whole(run.folder / CURVE, _as_csv(self.curve))

    def _write(self, name: str, steps: int, figures: dict[str, float]) -> None:
        run = self.run
        algorithm = run.learner.__name__ if run.learner else run.config.algorithm
        provenance: Provenance = {"algorithm": algorithm, "seed": run.seed, "steps": steps, **figures}
        scorer = self.model.policy.scorer
        assert isinstance(scorer, Scorer)
        write_policy(run.folder / name, config_of(self.held_out, run.config.widths, provenance), scorer.weights())

    def _record_training(self, steps: int) -> dict[str, float]:
        """Record means of the episodes since the last call. Return decisions per second and the environment's share of the time."""
        if self.episodes:
            figures = {name: [episode[name] for episode in self.episodes] for name in self.episodes[0] if name not in _NO_FIGURES}
            figures |= {"return": [episode["episode"]["r"] for episode in self.episodes]}
            figures |= {"decisions": [episode["episode"]["l"] for episode in self.episodes]}
            for name, values in sorted(figures.items()):
                self.logger.record(f"rollout/{name}", float(np.mean(values)))
        share = (self._env.seconds - self.env_seconds) / self.seconds if self.seconds else 0.0
        speed = {"frames_per_s": (steps - self.logged) / self.seconds if self.seconds else 0.0, "environment_share": share}
        for name, value in speed.items():
            self.logger.record(f"time/{name}", value)
        self.episodes, self.logged, self.seconds, self.env_seconds = [], steps, 0.0, self._env.seconds
        return speed


def _has_passed(last: int, steps: int, every: int) -> bool:
    """Return whether a multiple of `every` lies after `last` and not after `steps`."""
    return last < 0 or steps // every > last // every


def _as_csv(rows: Sequence[dict[str, float]]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
