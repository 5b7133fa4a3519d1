"""PPO without the mask, to show what the mask is worth.

The same network and the same settings as `trainers.maskable_ppo`, but any row may be drawn, and the network is not told which may
be chosen. The environment does not carry a forbidden choice out; it charges a penalty, which is all there is to learn from.
"""

from __future__ import annotations

from stable_baselines3 import PPO
from stable_baselines3.common.utils import LinearSchedule

from trainers.config import Config
from trainers.pointer import PointerPolicy
from trainers.vec_env import NativeVecEnv


def ppo(config: Config, env: NativeVecEnv, seed: int) -> PPO:
    """PPO with the candidate-scoring network, untrained."""
    ppo = config.ppo
    return PPO(
        PointerPolicy,  # type: ignore[arg-type]
        env,
        learning_rate=LinearSchedule(ppo.learning_rate, 0.0, 1.0) if ppo.linear else ppo.learning_rate,
        n_steps=ppo.n_steps,
        batch_size=ppo.batch_size,
        n_epochs=ppo.n_epochs,
        gamma=ppo.gamma,
        gae_lambda=ppo.gae_lambda,
        clip_range=ppo.clip_range,
        ent_coef=ppo.ent_coef,
        vf_coef=ppo.vf_coef,
        max_grad_norm=ppo.max_grad_norm,
        target_kl=ppo.target_kl,
        policy_kwargs={"widths": config.widths, "sees_mask": False},
        seed=seed,
        device="cpu",
    )
