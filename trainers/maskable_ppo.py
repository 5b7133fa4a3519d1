"""Masked PPO: proximal policy optimization (Schulman et al. 2017) over the choices that may be made (Huang and Ontañón 2020).

Every stream plays `n_steps` decisions. Advantages are generalised (GAE, Schulman et al. 2016), over decisions and not hours: the
reward is dollars, undiscounted by default. Then `n_epochs` passes over minibatches of all decisions raise the clipped objective
with Adam. What the mask forbids has probability 0 when a choice is drawn and when its gradient is taken.
"""

from __future__ import annotations

from sb3_contrib import MaskablePPO
from stable_baselines3.common.utils import LinearSchedule

from trainers.config import Config
from trainers.pointer import PointerPolicy
from trainers.vec_env import NativeVecEnv


def maskable_ppo(config: Config, env: NativeVecEnv, seed: int) -> MaskablePPO:
    """Masked PPO with the candidate-scoring network, untrained."""
    ppo = config.ppo
    return MaskablePPO(
        PointerPolicy,
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
        policy_kwargs={"widths": config.widths},
        seed=seed,
        device="cpu",
    )
