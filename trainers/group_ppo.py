"""Group PPO: PPO without a critic, whose baseline is what other copies of the same stream gained.

Every update plays `streams / copies` drawn streams to their ends, each `copies` times. All copies meet the same jobs, so the mean
return of the other copies from the same progress on contains the luck of the stream (the shared baseline of POMO, Kwon et al.
2020; an input-dependent baseline, Mao et al. 2019). What is left is the worth of the choices. Returns are discounted by progress,
which is time or work done, because copies make different numbers of decisions. Then `n_epochs` passes over minibatches of all
decisions with a choice maximise the clipped objective (Schulman et al. 2017) with Adam. Only valid rows are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import update_learning_rate
from torch import Tensor

from rollmux_env.portable import FIRST_DRAWN_SEED
from trainers.config import GroupPPOConfig, GroupSettings
from trainers.maskable_ppo import learning_rate
from trainers.network import spread
from trainers.pointer import PointerPolicy
from trainers.problem import Problem
from trainers.vec_env import NativeVecEnv, Observation

Progress = Callable[[Any, Observation], NDArray[np.float64]]
"""Function from the environment and an observation to how far each stream is, in the unit of the discount, shape (E,)."""


class GroupChoices(NamedTuple):
    """The D decisions of an update that had a choice, with N valid rows in all.

    Attributes:
        job: Features of the jobs, shape (D, Fj).
        cluster: Features of the cluster, shape (D, Fk).
        rows: Features of the valid rows, one decision after the other, shape (N, Fc).
        counts: Number of valid rows of each decision, shape (D,).
        chosen: Chosen row of each decision, among its valid rows, shape (D,).
        log_probs: Logarithm of its probability when it was chosen, shape (D,).
        step: Step of the update at which it was chosen, shape (D,).
        stream: Stream in which it was chosen, shape (D,).
    """

    job: Tensor
    cluster: Tensor
    rows: Tensor
    counts: Tensor
    chosen: Tensor
    log_probs: Tensor
    step: Tensor
    stream: Tensor


class GroupPPO(BaseAlgorithm):
    """PPO with a group baseline, as an algorithm of Stable-Baselines3.

    Args:
        env: Environment, whose streams are divided into groups of copies.
        progress: Function that says how far each stream is.
        settings: Settings of PPO, whose `copies` divides the number of streams.
        widths: Width of each layer of the network.
        seed: Seed of weights, choices and streams.
    """

    policy: PointerPolicy

    def __init__(
        self, env: NativeVecEnv, progress: Progress, settings: GroupSettings, widths: Sequence[int] = (64, 64), seed: int = 0
    ) -> None:
        options: Any = {"policy_kwargs": {"widths": widths}, "seed": seed, "device": "cpu", "support_multi_env": True}
        super().__init__(PointerPolicy, env, learning_rate(settings), **options)
        self.progress, self.settings = progress, settings
        env.env.autoreset_mode = AutoresetMode.DISABLED  # type: ignore[attr-defined]  # a stream that is over waits for the others
        self._setup_model()

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = PointerPolicy(self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs)  # type: ignore[arg-type]

    def predict(self, observation: Any, **options: Any) -> Any:  # type: ignore[override]
        """Return the actions for observations, as `PointerPolicy.predict` does. `action_masks` are the valid rows."""
        return self.policy.predict(observation, **options)

    def learn(  # type: ignore[override]
        self, total_timesteps: int, callback: BaseCallback | None = None, reset_num_timesteps: bool = True, **_: Any
    ) -> GroupPPO:
        """Train until this number of decisions has been made. The last update plays its streams to the end.

        Args:
            total_timesteps: Number of decisions.
            callback: Callback of Stable-Baselines3, or None. Its `on_step` is called once an update, when the episodes are over.
            reset_num_timesteps: Whether the count of decisions starts at 0.
        """
        total, called = self._setup_learn(total_timesteps, callback, reset_num_timesteps)
        called.on_training_start(locals(), globals())
        while self.num_timesteps < total:
            called.on_rollout_start()
            self._update_current_progress_remaining(self.num_timesteps, total)
            choices, advantages, infos = self.play()
            called.update_locals({"infos": infos, "dones": np.ones(self.n_envs, dtype=np.bool_)})
            if not called.on_step():
                break
            called.on_rollout_end()
            self.train(choices, advantages)
        called.on_training_end()
        return self

    def play(self) -> tuple[GroupChoices, Tensor, list[dict[str, Any]]]:
        """Play drawn streams to their ends. Return the decisions with a choice, their advantages, and each stream's `info`."""
        assert isinstance(self.env, NativeVecEnv)
        env, began = self.env.env, perf_counter()
        copies = self.settings.copies
        drawn = torch.randint(FIRST_DRAWN_SEED, 2**31, (self.n_envs // copies,)).repeat_interleave(copies)
        observation, info = env.reset(options={"stream_seed": drawn.tolist()})
        self.env.seconds += perf_counter() - began
        over = np.zeros(self.n_envs, dtype=np.bool_)
        steps: list[GroupChoices] = []
        rewards, progress, alive = [], [self.progress(env, observation)], []
        while not over.all():
            alive.append(~over)
            actions, choices = self._choose(observation, over, len(steps))
            steps.append(choices)
            began = perf_counter()
            observation, reward, terminated, truncated, info = env.step(actions)
            self.env.seconds += perf_counter() - began
            rewards.append(np.where(over, 0.0, reward))
            progress.append(self.progress(env, observation))
            over |= terminated | truncated
        lengths = np.sum(alive, axis=0)
        self.num_timesteps += int(lengths.sum())
        choices = GroupChoices(*(torch.cat(column) for column in zip(*steps, strict=True)))
        returns = discounted(np.array(rewards), np.array(progress), self.settings.gamma)
        advantages = torch.from_numpy(returns - baseline(returns, np.array(progress), lengths, copies)).float()
        picked = advantages[choices.step, choices.stream]
        self._record(returns[choices.step, choices.stream], picked.numpy())
        figures = {name: column for name, column in info.items() if name[0] != "_" and len(column) == self.n_envs}
        whole = np.sum(rewards, axis=0)
        infos = [
            {name: column[s] for name, column in figures.items()} | {"episode": {"r": float(whole[s]), "l": int(lengths[s])}}
            for s in range(self.n_envs)
        ]
        return choices, picked / picked.std().clamp(min=1e-8), infos

    def _record(self, returns: NDArray[np.float64], advantages: NDArray[np.float32]) -> None:
        """Record the returns and the advantages of the decisions with a choice."""
        for name, values in (("returns", returns), ("advantages", advantages)):
            self.logger.record(f"train/{name}_mean", float(values.mean()))
            self.logger.record(f"train/{name}_std", float(values.std()))
        self.logger.record("train/explained_variance", 1 - float(advantages.var()) / max(float(returns.var()), 1e-12))

    def _choose(self, observation: Observation, over: NDArray[np.bool_], step: int) -> tuple[NDArray[np.int64], GroupChoices]:
        """Draw an action for every stream, and return them with the decisions that had a choice."""
        mask = (observation["mask"] > 0) & ~over[:, None]
        actions = mask.argmax(axis=1)
        which = np.flatnonzero(mask.sum(axis=1) > 1)
        valid = mask[which]
        job, cluster, rows = (
            torch.from_numpy(np.ascontiguousarray(column, dtype=np.float32))
            for column in (observation["job"][which], observation["cluster"][which], observation["candidates"][which][valid])
        )
        counts = torch.from_numpy(valid.sum(axis=1))
        with torch.no_grad():
            log_probs = torch.log_softmax(spread(self.policy.scorer.logits(job, rows, cluster, counts), packed(counts)), dim=1)
            drawn = torch.multinomial(log_probs.exp(), 1) if len(which) else torch.zeros((0, 1), dtype=torch.int64)
        chosen = drawn[:, 0]
        actions[which] = np.argsort(~valid, axis=1, kind="stable")[np.arange(len(which)), chosen.numpy()]
        stream = torch.from_numpy(which)
        return actions, GroupChoices(
            job, cluster, rows, counts, chosen, log_probs.gather(1, drawn)[:, 0], torch.full_like(stream, step), stream
        )

    def train(self, choices: GroupChoices, advantages: Tensor) -> None:
        """Update the network.

        Args:
            choices: Decisions of an update.
            advantages: Advantages of the decisions, divided by their standard deviation, shape (D,).
        """
        settings, optimizer, scorer = self.settings, self.policy.optimizer, self.policy.scorer
        rate = self.lr_schedule(self._current_progress_remaining)
        update_learning_rate(optimizer, rate)
        starts = choices.counts.cumsum(0) - choices.counts
        sums: dict[str, float] = {}
        steps = 0
        for _ in range(settings.n_epochs):
            for which in torch.split(torch.randperm(len(advantages)), settings.batch_size):
                counts = choices.counts[which]
                before = counts.cumsum(0) - counts
                rows = torch.repeat_interleave(starts[which] - before, counts) + torch.arange(int(counts.sum()))
                logits = scorer.logits(choices.job[which], choices.rows[rows], choices.cluster[which], counts)
                log_probs = torch.log_softmax(spread(logits, packed(counts)), dim=1)
                change = log_probs.gather(1, choices.chosen[which].unsqueeze(1))[:, 0] - choices.log_probs[which]
                ratio, wanted = change.exp(), advantages[which]
                clipped = ratio.clamp(1 - settings.clip_range, 1 + settings.clip_range)
                gain = torch.minimum(ratio * wanted, clipped * wanted).mean()
                entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
                optimizer.zero_grad()
                (-gain - settings.ent_coef * entropy).backward()  # type: ignore[no-untyped-call]
                norm = torch.nn.utils.clip_grad_norm_(scorer.parameters(), settings.max_grad_norm)
                optimizer.step()
                with torch.no_grad():
                    figures = {
                        "policy_gradient_loss": -gain.detach(),
                        "entropy": entropy.detach(),
                        "grad_norm": norm,
                        "approx_kl": (ratio - 1 - change).mean(),
                        "clip_fraction": (clipped != ratio).float().mean(),
                    }
                sums = {name: sums.get(name, 0.0) + float(value) for name, value in figures.items()}
                steps += 1
        self._n_updates += settings.n_epochs
        for name, total in sums.items():
            self.logger.record(f"train/{name}", total / steps)
        self.logger.record("train/learning_rate", rate)


def packed(counts: Tensor) -> Tensor:
    """Return a mask whose rows begin with the given numbers of True, shape (B, largest count)."""
    most = int(counts.max()) if len(counts) else 1
    return torch.arange(most) < counts.unsqueeze(1)


def discounted(rewards: NDArray[Any], progress: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """Return the discounted sum of rewards from each decision on, and 0 at the end, shape (T + 1, E).

    Args:
        rewards: Rewards, 0 after the end of a stream, shape (T, E).
        progress: Progress at each decision and at the end, shape (T + 1, E).
        gamma: Discount per unit of progress.
    """
    returns = np.zeros_like(progress)
    factors = gamma ** np.maximum(np.diff(progress, axis=0), 0.0)
    for t in reversed(range(len(rewards))):
        returns[t] = rewards[t] + factors[t] * returns[t + 1]
    return returns


def baseline(
    returns: NDArray[np.float64], progress: NDArray[np.float64], lengths: NDArray[np.int64], copies: int
) -> NDArray[np.float64]:
    """Return the mean return of a decision's other copies at the same progress, shape (T + 1, E).

    Between two decisions of a copy its return is interpolated, as if its reward came evenly.

    Args:
        returns: Returns at each decision, shape (T + 1, E).
        progress: Progress at each decision, shape (T + 1, E).
        lengths: Number of decisions of each stream, shape (E,).
        copies: Number of copies. Those of a stream are neighbours.
    """
    sums = np.zeros_like(returns)
    for s, length in enumerate(lengths.tolist()):
        first = s - s % copies
        known, at = returns[: length + 1, s], progress[: length + 1, s]
        for other in range(first, first + copies):
            if other != s:
                sums[:, other] += np.interp(progress[:, other], at, known)
    return sums / max(copies - 1, 1)


def group_ppo(config: GroupPPOConfig, problem: Problem, seed: int) -> GroupPPO:
    """Create a group PPO with an untrained candidate-scoring network."""
    env = NativeVecEnv(problem.environment(config.streams))
    return GroupPPO(env, problem.progress, config.ppo, config.widths, seed)
