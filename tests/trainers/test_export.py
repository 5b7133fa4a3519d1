"""`rollmux.export_policy`: a model that was trained by hand as a policy file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rollmux_env.envs  # noqa: F401 (registers)
from policies.dispatch import make_dispatch
from policies.placement.learned import Learned
from policies.placement.policy_file import read_policy
from policies.rollout import make_rollout
from rollmux_env.envs.placement.generator import Toy
from rollmux_env.errors import InputError

pytest.importorskip("sb3_contrib")

from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecNormalize

from rollmux import export_policy
from trainers.pointer import PointerPolicy
from trainers.vec_env import NativeVecEnv


def model_on(name: str, policy: Any = PointerPolicy, **options: Any) -> MaskablePPO:
    env: Any = gymnasium.make_vec(f"RollMux/{name}-v0", num_envs=2, vectorization_mode="vector_entry_point", **options).unwrapped
    return MaskablePPO(policy, NativeVecEnv(env), n_steps=8, batch_size=16, device="cpu", seed=0)


def test_what_the_file_decides_is_what_the_model_does(tmp_path: Path) -> None:
    model = model_on("Placement", generator=Toy(), moves=True, known_stays=False)
    config = export_policy(model, tmp_path / "mine.safetensors", note="never trained")
    assert (config.moves, config.known_stays, config.provenance["note"]) == (True, False, "never trained")
    read, weights = read_policy(tmp_path / "mine.safetensors")
    assert read == config and all(np.array_equal(weights[k], v) for k, v in model.policy.scorer.weights().items())  # type: ignore[union-attr, operator]
    assert Learned(str(tmp_path / "mine.safetensors")).config.moves


@pytest.mark.parametrize(("name", "make"), [("Dispatch", make_dispatch), ("Rollout", make_rollout)])
def test_the_other_environments_have_files_too(tmp_path: Path, name: str, make: Any) -> None:
    config = export_policy(model_on(name), tmp_path / "mine.safetensors")
    assert config.decides == name.lower()
    assert make(f"learned:{tmp_path / 'mine.safetensors'}") is not None


def test_a_network_of_normalised_observations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    env = model_on("Placement", generator=Toy()).get_env()
    assert env is not None
    for normalises in (True, False):
        keys = ["job", "candidates", "cluster"] if normalises else None
        wrapped = VecNormalize(env, norm_obs=normalises, norm_obs_keys=keys)
        model = MaskablePPO(PointerPolicy, wrapped, n_steps=8, batch_size=16, device="cpu", seed=0)
        if normalises:
            with pytest.raises(InputError, match="a policy file has no statistics of VecNormalize; train with norm_obs=False"):
                export_policy(model, path)
            assert not path.exists()
        else:
            assert export_policy(model, path).decides == "placement"


def test_what_is_no_network_of_ours_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    with pytest.raises(InputError, match=r"the policy is a MaskableMultiInputActorCriticPolicy; a policy file holds a network of"):
        export_policy(model_on("Placement", "MultiInputPolicy", generator=Toy()), path)
    with pytest.raises(InputError, match="the policy is a dict; a policy file"):
        export_policy({}, path)
    with pytest.raises(InputError, match="No such file or directory"):
        export_policy(model_on("Placement", generator=Toy()), tmp_path / "nowhere" / "mine.safetensors")
    assert not path.exists()
