"""Checks of all that callers may hand to the environments, and copies of environments that run."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollmux_env.envs.dispatch.generator import RandomGroups
from rollmux_env.envs.placement.generator import Workload
from rollmux_env.envs.placement.reward import Dollars
from rollmux_env.envs.rollout.generator import Toy
from rollmux_env.errors import InputError, PlanError

IDS = ("RollMux/Placement-v0", "RollMux/Dispatch-v0", "RollMux/Rollout-v0")
STREAMS = 3
SHORT = Workload("mixed", jobs=12)


def vector(name: str, **options: Any) -> Any:
    return gymnasium.make_vec(name, num_envs=STREAMS, vectorization_mode="vector_entry_point", **options)


def refused(problem: str, call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=problem) as error:
        call()
    assert "\n" not in str(error.value)


def allowed(mask: np.ndarray, rng: np.random.Generator) -> Any:
    rows = [rng.choice(np.flatnonzero(one)) for one in np.atleast_2d(mask)]
    return np.array(rows) if mask.ndim > 1 else rows[0]


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("single", [True, False], ids=["single", "vector"])
@pytest.mark.parametrize("name", IDS)
def test_a_copy_goes_on_as_the_original(name: str, single: bool, how: str) -> None:
    env: Any = gymnasium.make(name) if single else vector(name)
    rng = np.random.default_rng(1)
    _, info = env.reset(seed=1)
    for _ in range(3):
        *_, info = env.step(allowed(info["action_mask"], rng))
    twin = copy.deepcopy(env) if how == "deepcopy" else pickle.loads(pickle.dumps(env))  # noqa: S301
    for _ in range(60):
        action = allowed(info["action_mask"], rng)
        one, two = env.step(action), twin.step(action)
        assert np.array_equal(one[1], two[1])
        assert all(np.array_equal(one[0][key], two[0][key]) for key in one[0])
        info = one[4]
        if single and (one[2] or one[3]):
            _, info = env.reset(seed=2)
            twin.reset(seed=2)


def test_a_copy_with_a_reference_and_moves_goes_on_too() -> None:
    env = vector(IDS[0], generator=SHORT, moves=True, reward=Dollars(reference="rollmux"))
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=4)
    twin = copy.deepcopy(env)
    for _ in range(40):
        actions = allowed(info["action_mask"], rng)
        *_, info = one = env.step(actions)
        assert np.array_equal(one[1], twin.step(actions)[1])


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize(
    ("actions", "problem"),
    [
        (np.zeros(5, int), r"not of shape \(5,\)"),
        (np.zeros((3, 1), int), r"not of shape \(3, 1\)"),
        (0, r"not of shape \(\)"),
        ([[0], [0, 1], [0]], "not a list"),
        (np.zeros(3), "not of type float64"),
        (np.zeros(3, bool), "not of type bool"),
        (["0", "1", "2"], "not of type <U1"),
        (None, r"not of shape \(\)"),
        ([None] * 3, "not of type object"),
    ],
)
def test_actions_of_another_number_shape_or_kind_are_one_line(name: str, actions: Any, problem: str) -> None:
    envs = vector(name)
    envs.reset(seed=0)
    refused(f"actions: must be 3 whole numbers, {problem}", lambda: envs.step(actions))


@pytest.mark.parametrize("action", [1.0, "1", None, True, np.zeros(1, int), 2**70])
def test_an_action_of_a_single_environment_is_a_whole_number(action: Any) -> None:
    env = gymnasium.make(IDS[0], disable_env_checker=True)
    env.reset(seed=0)
    refused("action: must be a whole number, not", lambda: env.step(action))


@pytest.mark.parametrize("name", IDS)
def test_an_unknown_number_is_a_masked_action_however_small(name: str) -> None:
    envs = vector(name)
    envs.reset(seed=0)
    for number in (np.iinfo(np.int64).min, -1, 10**6):
        assert envs.step(np.full(STREAMS, number))[4]["invalid_action"].all()


@pytest.mark.parametrize("name", IDS)
def test_calls_out_of_order_are_one_line(name: str) -> None:
    envs: Any = vector(name, render_mode="ansi").unwrapped
    for call in (lambda: envs.step(np.zeros(STREAMS, int)), envs.action_masks, envs.render):
        refused("the environment must be reset first", call)
    refused("reset_mask: the first reset must be of all streams", lambda: envs.reset(options={"reset_mask": [True, False, True]}))
    envs.reset(seed=0)
    envs.close()
    envs.close()
    for call in (lambda: envs.step(np.zeros(STREAMS, int)), envs.reset, envs.render, envs.action_masks):
        refused("the environment is closed", call)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"seed": 1.5}, "seed: must be a whole number, at least 0, or 3 of them, not 1.5"),
        ({"seed": -1}, "seed: must be"),
        ({"seed": [1, 2]}, "seed: must be"),
        ({"seed": "one"}, "seed: must be"),
        (
            {"options": {"stream_sed": 1}},
            "options: must be among stream_seed, reset_mask, not 'stream_sed'; did you mean stream_seed",
        ),
        ({"options": [1]}, "options: must be a mapping, not a list"),
    ],
)
def test_a_reset_takes_seeds_and_options_that_there_are(options: dict[str, Any], problem: str) -> None:
    refused(problem, lambda: vector(IDS[0], generator=SHORT).reset(**options))


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        (lambda interval: 0.0, r"one a stream, not of shape \(\)"),
        (lambda interval: np.array([0.0, np.nan, 1.0]), "all finite, not nan"),
        (lambda interval: np.zeros(5), r"one a stream, not of shape \(5,\)"),
        (lambda interval: None, "not of shape|not null"),
        (lambda interval: ["much"] * 3, "not a list"),
    ],
)
def test_a_reward_is_a_number_for_each_stream(name: str, reward: Any, problem: str) -> None:
    envs = vector(name, reward=reward)
    envs.reset(seed=0)
    refused(f"reward: must return 3 numbers, .*{problem}", lambda: envs.step(np.zeros(STREAMS, int)))


@pytest.mark.parametrize("name", IDS)
def test_a_reward_cannot_write_into_the_streams_nor_is_it_overwritten(name: str) -> None:
    def careless(interval: Any) -> Any:
        interval.invalid[:] = 7
        return interval.invalid

    envs = vector(name, reward=careless)
    envs.reset(seed=0)
    with pytest.raises(PlanError, match=r"the reward raised ValueError: .* read-only in careless \(test_checks.py, line \d+\)"):
        envs.step(np.zeros(STREAMS, int))
    envs = vector(name, reward=lambda interval: interval.invalid)
    envs.reset(seed=0)
    rewards = envs.step(np.full(STREAMS, -1))[1]
    envs.step(np.zeros(STREAMS, int))
    assert (rewards == 1).all()


class Failing:
    """A generator of a user's own that prints, and has no stream."""

    cluster, jobs = SHORT.cluster, 1
    members, nodes, iterations, stale = 2, 2, 8, False
    launched, gpus, prompts, rewards = (8, 1), 8, 8, False

    def scenario(self, seed: int) -> Any:
        print("drawing")
        raise KeyError(seed)

    group = case = scenario


@pytest.mark.parametrize("name", IDS)
def test_what_a_generator_or_a_reward_raises_is_one_line_and_what_it_prints_goes_to_stderr(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PlanError, match=r"^the generator raised KeyError: 5 in scenario \(test_checks.py, line \d+\)$"):
        vector(name, generator=Failing()).reset(seed=0, options={"stream_seed": 5})

    def failing(interval: Any) -> Any:
        print("paying")
        raise SystemExit(3)

    envs = vector(name, reward=failing)
    envs.reset(seed=0)
    for one in (envs, copy.deepcopy(envs)):
        with pytest.raises(PlanError, match=r"^the reward raised SystemExit: 3 in failing \(test_checks.py, line \d+\)$"):
            one.step(np.zeros(STREAMS, int))
    assert capsys.readouterr() == ("", "drawing\npaying\npaying\n")


class Lacking:
    """A generator that has too little."""


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        (IDS[0], {"candidates": 2.5}, "candidates: must be a whole number, not 2.5"),
        (IDS[0], {"moves": "no"}, "moves: must be true or false, not 'no'"),
        (IDS[0], {"shield": 1}, "shield: must be true or false, not 1"),
        (IDS[0], {"reward": 3}, "reward: must be a function of an interval, not 3"),
        (IDS[0], {"generator": Lacking()}, "generator: Lacking has no `cluster`"),
        (IDS[1], {"generator": Lacking()}, "generator: Lacking has no `members`"),
        (IDS[1], {"tails": 0.5}, "tails: must be a TailModel, not 0.5"),
        (IDS[2], {"generator": "random"}, "generator: str has no `launched`"),
    ],
)
def test_an_environment_is_made_of_what_it_can_use(name: str, options: dict[str, Any], problem: str) -> None:
    refused(problem, lambda: vector(name, **options))


@pytest.mark.parametrize("streams", ["2", 2.0, True, 0])
def test_a_number_of_streams_is_a_whole_number(streams: Any) -> None:
    from rollmux_env.envs.dispatch.env import DispatchVectorEnv

    refused("num_envs: must be", lambda: DispatchVectorEnv(streams))


def test_a_reference_is_one_that_is_known() -> None:
    class Against:
        reference = "fifo"

        def __call__(self, interval: Any) -> Any:
            return interval.usd

    refused("reward.reference: must be one of rollmux, rollmux,prune=false, or None", lambda: vector(IDS[0], reward=Against()))
    refused("reward.reference: must be one of round-robin", lambda: vector(IDS[1], reward=Against()))


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("training_pool", 2, "training_pool must be between 0 and 1"),
        ("rollout_nodes", 0, "rollout_nodes must be between 1 and"),
        ("rollout_nodes", 9, "needs nodes = 9, and the generator has nodes = 1"),
        ("rollout_s", np.nan, "rollout_s must be between 0"),
        ("first_shape", 99, "first_shape must be between 0 and 11"),
        ("arrival_s", 0.0, "jobs must be in order of arrival"),
    ],
)
def test_records_of_a_generator_are_looked_at(column: str, value: float, problem: str) -> None:
    class Own(Workload):
        def stream(self, seed: int) -> Any:
            stream = super().stream(seed)
            stream[column][-1] = value
            return stream

    refused(f"generator: the scenario of seed 0: .*{problem}", lambda: _first(Own("mixed", jobs=12)))


def _first(generator: Any) -> None:
    vector(IDS[0], generator=generator).reset(options={"stream_seed": 0})


def test_other_streams_than_were_announced_are_refused_and_the_environment_is_to_be_reset() -> None:
    own: Any = Workload("mixed", jobs=12)
    own.stream = lambda seed: np.zeros(3)
    refused("must be a table of jobs", lambda: _first(own))
    own.stream = Workload("mixed", jobs=13).stream
    envs = vector(IDS[0], generator=own)
    refused("has 13 jobs, and the generator says jobs = 12 at most", lambda: envs.reset(seed=0))
    refused("the environment must be reset first", lambda: envs.step(np.zeros(STREAMS, int)))


@pytest.mark.parametrize(("name", "own", "kind"), [(IDS[1], RandomGroups(), "group"), (IDS[2], Toy(), "case")])
def test_groups_and_cases_are_of_their_classes(name: str, own: Any, kind: str) -> None:
    setattr(own, kind, lambda seed: None)
    refused(rf"generator: {kind}\(\d+\) must be a", lambda: vector(name, generator=own).reset(seed=0))


def test_lengths_of_a_case_are_tokens_up_to_the_cap() -> None:
    case = Toy().case(0)
    for length in (0, 1001):
        lengths = (((length,) * 2,) * 3, *case.lengths[1:])
        refused("lengths must be between 1 and the cap of 1000", partial(replace, case, lengths=lengths))


@pytest.mark.parametrize("name", IDS)
def test_masks_in_an_info_are_the_callers(name: str) -> None:
    envs = vector(name)
    _, info = envs.reset(seed=0)
    for key, column in info.items():
        if key[0] == "_":
            column[:] = False
    *_, info = envs.step(np.zeros(STREAMS, int))
    assert info["_stream_seed"].all() and len(envs.reset()[1]["stream_seed"]) == STREAMS
    assert envs.reset()[1]["_stream_seed"].all()
