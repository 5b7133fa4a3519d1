"""Agents that have learned nothing: their choices are allowed, they differ by seed, and they are references by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rollmux_env.errors import InputError
from rollmux_env.files import read_json
from tests.benchmarks import load_benchmark
from trainers.config import Evaluation
from trainers.problems.catalogue import make_problem
from trainers.references import AGENTS, reference_usd
from trainers.runs import find_references
from trainers.vec_env import Observation, play

TOY = {"name": "placement", "workload": "toy", "options": {"rounds": 1}, "candidates": 8}
SHORT = {"dispatch": {"name": "dispatch", "shape": "temporal", "rounds": 2}, "rollout": {"name": "rollout", "rollouts": 1}}


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_chooses_what_the_mask_allows_and_the_same_again(name: str) -> None:
    env = make_problem(TOY, "toy").environment(3, autoreset=False)
    choose, chosen = AGENTS[name](env, 5), []

    def watched(observation: Observation) -> np.ndarray:
        actions = choose(observation)
        assert (observation["mask"][range(3), actions] == 1).all()
        chosen.append(actions.tolist())
        return actions

    played = play(env, range(3), watched)
    again = play(make_problem(TOY, "toy").environment(3, autoreset=False), range(3), AGENTS[name](env, 5))
    assert len(chosen) > 1 and played["cost_usd"].tolist() == again["cost_usd"].tolist()


def test_they_are_references_beside_policies(tmp_path: Path) -> None:
    problem, names = make_problem(TOY, "toy"), ("solo", "first-fit", *AGENTS)
    settings = Evaluation(first_seed=3, seeds=2, references=names)
    usd = find_references(problem, settings, tmp_path / "references.json", lambda task: None)
    assert [*usd] == [*names]
    for name in names:
        assert usd[name].tolist() == [reference_usd(problem, name, seed) for seed in (3, 4)]
        assert (usd["solo"] / 2 <= usd[name] + 1e-9).all(), "half of Solo-D is the optimum"
        assert (usd[name] <= usd["solo"] + 1e-9).all()


def test_dollars_of_an_agent_are_those_of_its_environment_and_seed(tmp_path: Path) -> None:
    file, settings = tmp_path / "references.json", Evaluation(seeds=4, references=("masked-random", "solo"))
    for candidates in (2, 8):
        problem = make_problem(TOY | {"candidates": candidates}, "toy")
        usd = find_references(problem, settings, file, lambda task: None)
        assert usd["masked-random"].tolist() == [reference_usd(problem, "masked-random", seed) for seed in range(1000, 1004)]
    assert sum("solo" in key for key in read_json(file)) == 4  # what plays no environment is computed once


@pytest.mark.parametrize("environment", SHORT.values(), ids=SHORT)
def test_every_environment_has_them(environment: dict[str, object]) -> None:
    problem = make_problem(environment, "short")
    usd = [reference_usd(problem, "masked-random", seed) for seed in (0, 1)]
    assert 0 < min(usd) < max(usd)


def test_the_gain_of_learning_is_not_measured_with_two_simulators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_benchmark("learning_gain")
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    part = script.Part("Toy", "toy", TOY, ("rollmux",))
    known = script.measure("toy", part, decisions=1, trainings=0, streams=1)
    assert script.measure("toy", part, decisions=1, trainings=0, streams=1) == known
    (tmp_path / "toy.json").write_text('{"rollmux": [1.5]}')
    with pytest.raises(
        InputError, match=r"toy.json: .rollmux. costs .* on stream 2000, and cost 1.5: .* delete the file"
    ) as caught:
        script.measure("toy", part, decisions=1, trainings=0, streams=1)
    assert "\n" not in str(caught.value)
