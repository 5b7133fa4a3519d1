"""Errors about names that are not known say which one was probably meant."""

from __future__ import annotations

from typing import Any

import pytest

from rollmux_env.errors import InputError
from rollmux_env.scenario import parse_scenario
from rollmux_env.suggestions import did_you_mean

NO_KEY = "is not a key of this file format"


def scenario(job: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    pool = {"gpus_per_node": 1, "usd_per_gpu_hour": 1.0}
    phase = {"worst_case_s": 10.0}
    whole = {"id": "a", "arrival_s": 0, "iterations": 3, "slo": 2, "rollout": phase, "training": phase, **(job or {})}
    return {"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": [whole], **top}


def error_of(data: dict[str, Any]) -> str:
    with pytest.raises(InputError) as error:
        parse_scenario(data)
    return str(error.value).removeprefix("scenario: ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            scenario({"actual": {"mean_fraction": 0.5}}),
            f"jobs[0].actual: {NO_KEY}; did you mean jobs[0].rollout.actual or jobs[0].training.actual?",
        ),
        (
            scenario({"rollout": {"worst_case_s": 1, "lengths": {}}}),
            f"jobs[0].rollout.lengths: {NO_KEY}; did you mean jobs[0].lengths?",
        ),
        (scenario({"max_group_size": 3}), f"jobs[0].max_group_size: {NO_KEY}; did you mean cluster.max_group_size?"),
        (scenario(max_group_size=3), f"max_group_size: {NO_KEY}; did you mean cluster.max_group_size?"),
        (scenario(slo=2), f"slo: {NO_KEY}; did you mean jobs[0].slo?"),
        (scenario(default={}), f"default: {NO_KEY}; did you mean defaults?"),
        (
            scenario(defaults={"actual": None}),
            f"defaults.actual: {NO_KEY}; did you mean defaults.rollout.actual or defaults.training.actual?",
        ),
        (scenario({"Iterations": 3}), f"jobs[0].Iterations: {NO_KEY}; did you mean jobs[0].iterations?"),
        (scenario({"colour": 3}), f"jobs[0].colour: {NO_KEY}"),
        (
            scenario({"drift": [{"iteration": 1, "rolout": 2.0}]}),
            f"jobs[0].drift[0].rolout: {NO_KEY}; did you mean jobs[0].drift[0].rollout?",
        ),
    ],
)
def test_an_unknown_key_is_sought_at_its_place_and_at_other_levels(data: dict[str, Any], said: str) -> None:
    assert error_of(data) == said


def test_a_key_without_a_value_is_said_to_have_none() -> None:
    assert error_of(scenario({"rollout": None})) == "jobs[0].rollout: has no value (null); it must be a mapping"
    assert error_of(scenario({"slo": None})) == "jobs[0].slo: has no value (null); it must be a number"


def test_a_missing_key_is_missing_also_where_a_model_needs_it() -> None:
    model = {"model": "7B", "lengths": {"cap": 4096}}
    data = scenario(model)
    del data["cluster"]["rollout"]
    assert error_of(data) == "cluster.rollout: is missing"
    assert error_of({**data, "cluster": None}) == "cluster: is missing"
    assert error_of({**data, "cluster": [1]}) == "cluster: must be a mapping, not a list"


def test_names_are_near_whatever_their_case_and_far_names_are_not_suggested() -> None:
    assert did_you_mean("RolMux", ["solo", "rollmux"]) == "; did you mean rollmux?"
    assert (
        did_you_mean("zebra", ["solo", "rollmux"]) == ""
        and did_you_mean(3, ["solo"]) == ""
        and did_you_mean("a" * 10**6, ["a"]) == ""
    )
