"""The JSON Schema: takes the files that load, and refuses what a schema can."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import InputError
from rollmux_env.reading import read_mapping
from rollmux_env.scenario import parse_scenario
from rollmux_env.schema import scenario_schema
from tests.rollmux_env.test_scenario import COUNTS, EXAMPLES, NOT_NEGATIVE, POSITIVE, REQUIRED, ROOT, placed, small, without

SCHEMA = scenario_schema()
CONTRACT = sorted((ROOT / "tests" / "contract").glob("*.json"))


@functools.cache
def validator() -> Any:
    return pytest.importorskip("jsonschema").Draft202012Validator(SCHEMA)


def takes(data: dict[str, Any]) -> bool:
    """Whether the schema takes the file, as an editor sees it: with keys that are text."""
    valid: bool = validator().is_valid(json.loads(json.dumps(data)))
    return valid


def loads(data: dict[str, Any]) -> bool:
    try:
        parse_scenario(data)
    except InputError:
        return False
    return True


def test_it_is_a_schema_of_2020_12_and_plain_json() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    validator().check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA == scenario_schema()


@pytest.mark.parametrize("path", [*EXAMPLES, *CONTRACT], ids=lambda path: path.name)
def test_files_that_load_validate(path: Path) -> None:
    data = read_mapping(path)
    data = data.get("scenario", data)
    assert loads(data) and takes(data)
    assert takes(json.loads(parse_scenario(data).canonical_json()))


def test_every_property_is_described() -> None:
    for name, definition in {"": SCHEMA, **SCHEMA["$defs"]}.items():
        for key, value in definition["properties"].items():
            assert "description" in value or SCHEMA["$defs"][value["$ref"].rpartition("/")[2]]["description"], f"{name}.{key}"
        assert definition["additionalProperties"] is False


def test_every_definition_is_used_and_every_reference_is_defined() -> None:
    text = json.dumps(SCHEMA)
    used = {part.partition('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert used == set(SCHEMA["$defs"])


def test_quantities_say_their_unit() -> None:
    for definition in SCHEMA["$defs"].values():
        for key, value in definition["properties"].items():
            for suffix, unit in (("_s", "econds"), ("_gb", "GB"), ("usd_per_gpu_hour", "$/h")):
                if key.endswith(suffix):
                    assert unit in value["description"], key


@pytest.mark.parametrize("path", REQUIRED)
def test_missing_keys_are_refused(path: str) -> None:
    assert not takes(without(small(), path))


BAD: list[tuple[str, Any]] = [
    *((path, value) for path in [*POSITIVE, *NOT_NEGATIVE, "jobs.0.slo"] for value in (-1, 1e300, "5", True, list[int]())),
    *((path, 0) for path in [*POSITIVE, *COUNTS, "jobs.0.slo"]),
    *((path, value) for path in COUNTS for value in (1.5, "1", True, 10**12)),
    *((path, 3) for path in ("jobs", "jobs.0.rollout", "jobs.0.drift", "cluster", "jobs.0.id", "cluster.rollout.gpu")),
    *((f"{at}colour", 1) for at in ("", "cluster.", "cluster.rollout.", "jobs.0.", "jobs.0.rollout.", "jobs.0.training.switch.")),
    *(("jobs.0.id", value) for value in ("", "a b", "x" * 65, None, 7)),
    ("version", 2),
    ("jobs", []),
    ("jobs", [3]),
    ("jobs.0.duration_s", 5),
    ("jobs.0.movable", "no"),
    ("jobs.0.movable", None),
    ("jobs.0.iterations", None),
    ("jobs.0.rollout.by_nodes", {"2": 1}),
    ("jobs.0.training.by_nodes", {"x": 1}),
    ("jobs.0.training.by_nodes", {"02": 1}),
    ("jobs.0.training.by_nodes", {"0": 1}),
    ("jobs.0.drift", [{}]),
    ("jobs.0.rollout.actual", {"cv": 1}),
    ("jobs.0.colocated", {"nodes": 1}),
    ("cluster.pools", {"A": {"gpus_per_node": 8, "usd_per_gpu_hour": 2}}),
    ("cluster.rollout", None),
    ("jobs.0.rollout.pool", "a b"),
    ("jobs.0.lengths", {"cap": 1, "turns": 1025}),
]


@pytest.mark.parametrize("path, value", BAD, ids=str)
def test_what_the_loader_refuses_is_refused(path: str, value: Any) -> None:
    data = placed(small(), path, value)
    assert not loads(data) and not takes(data)


def test_whole_numbers_may_be_written_as_floats_and_limits_as_null() -> None:
    data = placed(placed(small(), "jobs.0.iterations", 3.0), "cluster.rollout.max_nodes", None)
    assert loads(data) and takes(data)


def test_with_defaults_a_job_may_leave_out_what_it_requires() -> None:
    data = small()
    job = data["jobs"][0]
    data["defaults"] = {key: job.pop(key) for key in ("arrival_s", "iterations", "slo", "rollout", "training")}
    data["defaults"]["rollout"] |= {"actual": {"cv": 0.2}}
    job["rollout"] = {"actual": {"mean_fraction": 0.5}}
    assert loads(data) and takes(data)
    assert not takes({key: value for key, value in data.items() if key != "defaults"})


@pytest.mark.parametrize(
    "defaults",
    [
        None,
        {"id": "a"},
        {"slos": 2},
        {"slo": 0.5},
        {"iterations": None},
        {"iterations": 1, "duration_s": 1},
        {"rollout": {"nodez": 1}},
        {"drift": [{}]},
    ],
    ids=str,
)
def test_bad_defaults_are_refused(defaults: Any) -> None:
    data = small() | {"defaults": defaults}
    assert not loads(data) and not takes(data)


@pytest.mark.parametrize(
    "path, value", [("jobs.0.slo", 0), ("jobs.0.colour", 1), ("jobs.0.rollout.nodes", 0), ("jobs.0.duration_s", 1)]
)
def test_with_defaults_what_a_job_does_hold_is_still_checked(path: str, value: Any) -> None:
    data = placed(small(), path, value) | {"defaults": {}}
    assert not loads(data) and not takes(data)
    anonymous = copy.deepcopy(small()) | {"defaults": {}}
    del anonymous["jobs"][0]["id"]
    assert not takes(anonymous)
