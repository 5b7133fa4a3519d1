"""Training on the dispatch environment, and that what comes out decides in the event replay as it was evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.dispatch import make_dispatch
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.errors import InputError
from tests.trainers.going_on import check_going_on
from trainers.checkpoint import load_state, state_of
from trainers.config import check_config, read_config
from trainers.problems.catalogue import make_problem
from trainers.runs import find_references
from trainers.train import BEST, TrainingRun, train

SMALL = {
    "algorithm": "maskable-ppo",
    "steps": 8192,
    "streams": 32,
    "widths": [32, 32],
    "environment": {"name": "dispatch", "shape": "rollout-heavy", "skew": 0.5, "rounds": 10, "reference": "round-robin"},
    "ppo": {"learning_rate": 0.002, "n_steps": 64, "batch_size": 512, "gamma": 0.97, "gae_lambda": 0.9},
    "evaluation": {"first_seed": 1000, "seeds": 8, "every": 8192, "references": ["round-robin"]},
    "checkpoint_every": 8192,
}


def test_a_short_run_beats_round_robin_and_its_file_does_so_in_the_event_replay(tmp_path: Path) -> None:
    config = check_config(SMALL, "small")
    problem: Any = make_problem(config.environment, "small")
    references = find_references(problem, config.evaluation, tmp_path / "references.json", lambda _: None)
    curve = train(TrainingRun(config, problem, references, 0, tmp_path, lambda *_: None))
    best = max(curve, key=lambda found: found["return"])
    assert best["return"] > 0 and best["dollars_over_round-robin"] < 0.95
    dispatch = make_dispatch(f"learned:{tmp_path / BEST}")
    usd = []
    for seed in range(1000, 1008):
        group = problem.generator.group(seed)
        usd.append(figures(group, replay_group(group, dispatch))["usd_per_work_hour"])
    assert np.mean(usd) == pytest.approx(best["usd_per_work_hour"], rel=1e-6)


def test_an_environment_goes_on_exactly_from_its_saved_state() -> None:
    problem = make_problem({"name": "dispatch", "rounds": 3, "reference": "round-robin"}, "small")
    check_going_on(lambda: problem.environment(4), lambda mask: mask.argmax(1), 70, 150)
    stale = make_problem({"name": "dispatch", "rounds": 3, "reference": "round-robin", "stale": 0.5}, "small")
    check_going_on(lambda: stale.environment(4), lambda mask: mask.shape[1] - 1 - mask[:, ::-1].argmax(1), 70, 150)


def test_a_state_of_a_version_with_other_tables_is_refused_in_a_line() -> None:
    """Before groups had one format of rows, what stale members were at had a table of its own."""
    env: Any = make_problem({"name": "dispatch", "rounds": 3}, "small").environment(4)
    env.reset(seed=3)
    arrays, plain = state_of(env)
    with pytest.raises(InputError, match=r"^environment._groups.pipelines: is in only one of the saved environment and this one$"):
        load_state(env, {**arrays, "_groups.pipelines": np.zeros((4, 0, 64), np.uint8)}, plain)


def test_the_preset_can_be_read() -> None:
    config = read_config("dispatch")
    assert make_problem(config.environment, "dispatch").environment(2).num_envs == 2


def test_what_does_not_fit_is_said_in_a_line() -> None:
    for wrong in ({"rounds": 0}, {"colour": 1}, {"shape": "round"}, {"skew": 9.0}, {"stale": 2}):
        with pytest.raises(InputError, match=r"^small: environment") as error:
            make_problem({"name": "dispatch", **wrong}, "small")
        assert "\n" not in str(error.value)
