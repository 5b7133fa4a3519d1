"""Training on the rollout environment, and that what comes out can be used and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.rollout import make_rollout
from policies.rollout.environment import PolicyAgent
from rollmux_env.errors import InputError
from rollmux_env.files import read_json
from rollmux_env.rollout.job import JobRollouts
from tests.trainers.going_on import check_going_on
from trainers.config import check_config
from trainers.problems.catalogue import make_problem
from trainers.runs import find_references
from trainers.train import BEST, TrainingRun, train
from trainers.vec_env import play

SMALL = {
    "algorithm": "maskable-ppo",
    "steps": 512,
    "streams": 8,
    "widths": [16, 16],
    "environment": {"name": "rollout", "sigma": 1.5, "rollouts": 1},
    "ppo": {"n_steps": 32, "batch_size": 128, "n_epochs": 2},
    "evaluation": {"first_seed": 1000, "seeds": 4, "every": 512, "references": ["plain"]},
    "checkpoint_every": 512,
}


def test_a_short_run_leaves_a_policy_that_plays_as_it_was_evaluated(tmp_path: Path) -> None:
    config = check_config(SMALL, "small")
    problem: Any = make_problem(config.environment, "small")
    references = find_references(problem, config.evaluation, tmp_path / "references.json", lambda _: None)
    assert references["plain"] == pytest.approx(1)
    curve = train(TrainingRun(config, problem, references, 0, tmp_path, lambda *_: None))
    best = max(curve, key=lambda found: found["return"])
    env = problem.environment(4, autoreset=False)
    played = play(env, range(1000, 1004), PolicyAgent(f"learned:{tmp_path / BEST}", env).actions)
    assert played["return"].mean() == pytest.approx(best["return"], rel=1e-6)
    assert make_rollout(f"learned:{tmp_path / BEST},tails=false") == make_rollout(f"learned:{tmp_path / BEST},tails=false")


def test_an_environment_goes_on_exactly_from_its_saved_state() -> None:
    problem = make_problem({"name": "rollout", "rollouts": 1}, "small")
    check_going_on(lambda: problem.environment(3), lambda mask: mask.shape[1] - 1 - mask[:, ::-1].argmax(1), 17, 40)


def test_what_a_network_learns_of_rewards_it_reads_in_the_bench_too(tmp_path: Path) -> None:
    config = check_config(SMALL | {"environment": {"name": "rollout", "rollouts": 1, "rewards": True}, "steps": 256}, "small")
    problem: Any = make_problem(config.environment, "small")
    references = find_references(problem, config.evaluation, tmp_path / "references.json", lambda _: None)
    train(TrainingRun(config, problem, references, 0, tmp_path, lambda *_: None))
    env = problem.environment(2, autoreset=False)
    play(env, range(1000, 1002), PolicyAgent(f"learned:{tmp_path / BEST}", env).actions)
    setting = problem.generator.case(1000).setting
    assert JobRollouts(setting, make_rollout(f"learned:{tmp_path / BEST}"), 0).next().rewarded_s > 0


def test_the_kept_costs_of_learning_are_those_of_the_present_simulator() -> None:
    """Costs of `benchmarks/learning_gain.py`; another network than the shipped one has other ones on the first held-out jobs."""
    kept = read_json(Path(__file__).parents[2] / "benchmarks" / "results" / "learning_gain" / "rollout.json")
    problem = make_problem({"name": "rollout", "rollouts": 3}, "")
    for name in ("learned:default", "tail-batching+tail-migration", "tail-batching+adaptive-parallelism"):
        assert [problem.reference_usd(name, seed) for seed in (2000, 2001)] == pytest.approx(kept[name][:2], rel=1e-3), name


def test_what_does_not_fit_is_said_in_a_line(tmp_path: Path) -> None:
    for wrong in ({"rollouts": 0}, {"colour": 1}, {"sigma": 9.0}, {"held_weight": 2.0}, {"limited": 2.0}):
        with pytest.raises(InputError, match=r"^small: environment") as error:
            make_problem({"name": "rollout", **wrong}, "small")
        assert "\n" not in str(error.value)
    for spec in ("learned:no-such-file", "learned:default,colour=1", "learned:default,tails=2", "learned:default,switch_s=-1"):
        with pytest.raises(InputError) as error:
            make_rollout(spec)
        assert "\n" not in str(error.value)
    assert np.isfinite(make_problem({"name": "rollout"}, "small").environment(1).reset(seed=0)[0]["job"]).all()
