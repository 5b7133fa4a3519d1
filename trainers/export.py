"""Export of trained networks to policy files: their configurations, and `rollmux.export_policy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from policies.placement.policy_file import PolicyConfig, Provenance, write_policy
from rollmux_env.envs.dispatch.env import DispatchVectorEnv
from rollmux_env.envs.dispatch.observation import ON_POLICY, STALE
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.observation import candidate_names
from rollmux_env.envs.queue.choices import NAMES
from rollmux_env.envs.queue.env import QueueVectorEnv
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.observation import feature_names
from rollmux_env.errors import InputError
from rollmux_env.kernel.features import CLUSTER_FEATURES, JOB_FEATURES


def config_of(env: object, widths: Sequence[int], provenance: Provenance) -> PolicyConfig:
    """Return the configuration of the policy file of a network that was trained on an environment.

    Args:
        env: Vector environment of RollMux.
        widths: Width of each layer.
        provenance: Origin of the network.

    Raises:
        InputError: The environment is of another type.
    """
    if isinstance(env, PlacementVectorEnv):
        features = JOB_FEATURES, candidate_names(env.moves, env.generator.shapes > 0), CLUSTER_FEATURES
        return PolicyConfig.of(features, widths, provenance, moves=env.moves, known_stays=env.known_stays)
    if isinstance(env, DispatchVectorEnv):
        return PolicyConfig.of(STALE if env.generator.stale else ON_POLICY, widths, provenance, decides="dispatch")
    if isinstance(env, RolloutVectorEnv):
        return PolicyConfig.of(feature_names(env.generator.rewards), widths, provenance, decides="rollout")
    if isinstance(env, QueueVectorEnv):
        more: dict[str, Any] = {"decides": "queue", "known": env.known, "parks": env.rules.park}
        return PolicyConfig.of(NAMES, widths, provenance, **more)
    raise InputError(f"export_policy: the model's environment is {type(env).__name__}, none of RollMux's")


def export_policy(model: Any, path: str | Path, **provenance: str | float) -> PolicyConfig:
    """Write the policy file of a Stable-Baselines3 model, for `learned:PATH` in `bench`, `plan`, `explain` and `run`.

    Args:
        model: Model of sb3 or sb3-contrib whose policy is `trainers.pointer.PointerPolicy`, with an environment of RollMux.
        path: Path of the file, which is written atomically.
        provenance: Further values to record about the origin of the network.

    Returns:
        The configuration in the file.

    Raises:
        InputError: The policy or environment is of another type, its observations are normalised, or the file cannot be written.
    """
    from trainers.network import Scorer

    scorer = getattr(getattr(model, "policy", None), "scorer", None)
    if not isinstance(scorer, Scorer):
        kind = type(getattr(model, "policy", model)).__name__
        raise InputError(f"export_policy: the policy is a {kind}; a policy file holds a network of trainers.pointer.PointerPolicy")
    made: Provenance = {"algorithm": type(model).__name__, "steps": int(model.num_timesteps), **provenance}
    config = config_of(_environment(model.get_env()), model.policy.widths, made)
    write_policy(path, config, scorer.weights())
    return config


def _environment(env: Any) -> VectorEnv[Any, Any, Any] | Any:
    """Return the native environment inside SB3's wrappers."""
    while hasattr(env, "venv"):
        if getattr(env, "norm_obs", False):
            raise InputError("export_policy: a policy file has no statistics of VecNormalize; train with norm_obs=False")
        env = env.venv
    if hasattr(env, "envs"):  # a `DummyVecEnv` of single environments
        return getattr(env.envs[0].unwrapped, "vector", env)
    return getattr(env, "env", env)
