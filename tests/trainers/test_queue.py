"""Training on the queue environment, and that what comes out can be used and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.registry import make_policy
from rollmux_env.bench.harness import Task, run_task
from rollmux_env.errors import InputError
from rollmux_env.files import read_json
from rollmux_env.workloads.fleets import alone_s
from trainers.config import check_config, read_config
from trainers.problems.catalogue import make_problem
from trainers.problems.queue import QueueProblem
from trainers.runs import find_references
from trainers.train import BEST, LAST, TrainingRun, train
from trainers.vec_env import play

SMALL: dict[str, Any] = {
    "steps": 700,
    "streams": 8,
    "widths": [16, 16],
    "environment": {"name": "queue", "options": {"jobs": 8, "slo": [1.5, 3.0]}, "fleet": "3+3"},
    "ppo": {"copies": 4, "batch_size": 64, "learning_rate": 0.003},
    "evaluation": {"first_seed": 1000, "seeds": 3, "every": 300, "references": ["solo"]},
    "checkpoint_every": 300,
}


def trained(folder: Path, resume: bool = False, **changes: Any) -> list[dict[str, float]]:
    config = check_config(SMALL | changes, "small")
    problem = make_problem(config.environment, "small")
    folder.mkdir(exist_ok=True)
    references = find_references(problem, config.evaluation, folder / "references.json", lambda _: None)
    return train(TrainingRun(config, problem, references, 0, folder, lambda *_: None), resume)


def test_a_short_run_leaves_a_policy_that_bench_plays_as_it_was_evaluated(tmp_path: Path) -> None:
    best = max(trained(tmp_path), key=lambda found: found["return"])
    problem = make_problem(SMALL["environment"], "small")
    usd = [problem.reference_usd(f"learned:{tmp_path / BEST}", seed) for seed in range(1000, 1003)]
    assert np.mean(usd) == pytest.approx(best["completion_over_alone"], rel=1e-3)  # equal jobs may be exchanged by rounding
    assert best["return"] == pytest.approx(1 - best["completion_over_alone"])


def test_a_resumed_training_is_the_one_that_was_not_stopped(tmp_path: Path) -> None:
    trained(tmp_path / "whole")
    trained(tmp_path / "parts", steps=400)
    trained(tmp_path / "parts", resume=True)
    files = [(tmp_path / name / LAST).read_bytes() for name in ("whole", "parts")]
    assert files[0] == files[1]


def test_a_reference_is_the_bench_on_the_same_fleet_and_track() -> None:
    for known in ("lengths", "nothing"):
        problem = make_problem({**SMALL["environment"], "known": known}, "small")
        assert isinstance(problem, QueueProblem)
        scenario = problem.scenario(4)
        assert all(pool.max_nodes == 3 for pool in scenario.cluster.pools.values())
        hours = run_task(make_policy, Task("solo", 4, scenario)).outcome.metrics.mean_completion_h
        alone_h = sum(map(alone_s, scenario.jobs)) / len(scenario.jobs) / 3600
        assert hours and problem.reference_usd("solo", 4) == pytest.approx(hours / alone_h)
    keys = {make_problem({**SMALL["environment"], "known": known}, "").reference_key(4) for known in ("lengths", "nothing")}
    assert len(keys) == 2  # references of one track are not those of another


def test_progress_is_by_the_gap_between_arrivals() -> None:
    problem: Any = make_problem({"name": "queue", "options": {"jobs": 5}}, "")
    env = problem.environment(2, autoreset=False)
    assert problem.progress(env, env.reset(seed=0, options={"stream_seed": [1, 2]})[0]).tolist() == [0.0, 0.0]
    play(env, [1, 2], lambda seen: seen["mask"].shape[1] - 1 - seen["mask"][:, ::-1].argmax(axis=1))
    ends = [stream.state.now_s / stream.run.scenario.jobs[-1].arrival_s * 5 for stream in env.streams]
    assert problem.progress(env, {}).tolist() == pytest.approx(ends)


def test_the_kept_completions_of_learning_are_those_of_the_present_simulator() -> None:
    """Completions of `benchmarks/learning_gain.py` on the first held-out streams."""
    stream = read_config("queue").environment | {"options": {"jobs": 40, "slo": [1.5, 3.0], "classes": 8}}
    for known in ("lengths", "estimates", "classes", "nothing"):
        kept = read_json(Path(__file__).parents[2] / "benchmarks" / "results" / "learning_gain" / f"queue-{known}.json")
        problem = make_problem({**stream, "known": known}, "")
        for name in ("solo", next(iter(kept))):
            assert [problem.reference_usd(name, seed) for seed in (2000, 2001)] == pytest.approx(kept[name][:2], rel=1e-3), name


def test_what_does_not_fit_is_said_in_a_line(tmp_path: Path) -> None:
    for wrong in ({"fleet": "many"}, {"colour": 1}, {"known": "all"}, {"sigma": -1.0}, {"workload": "no-such"}):
        with pytest.raises(InputError, match=r"small: environment|fleet") as error:
            problem = make_problem({**SMALL["environment"], **wrong}, "small")
            problem.environment(1).reset(seed=0)
        assert "\n" not in str(error.value)
    masked: dict[str, Any] = {"algorithm": "maskable-ppo", "ppo": {"n_steps": 32, "batch_size": 64}}
    with pytest.raises(InputError, match=r"^small: algorithm: queue is trained with group-ppo, whose updates are whole episodes$"):
        trained(tmp_path, **masked)
