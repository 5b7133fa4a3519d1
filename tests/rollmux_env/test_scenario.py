"""The scenario file: what it means, and what it says when something is wrong with it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job
from rollmux_env.scenario import Scenario, load_scenario, parse_scenario
from rollmux_env.validation_errors import describe

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "examples" / f"{name}.yaml" for name in ("max_nodes", "queue", "quickstart", "three_pools")]


def small() -> dict[str, Any]:
    """The least that a file can hold."""
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 2}
    job = {"id": "a", "arrival_s": 0, "iterations": 3, "slo": 1.5, "rollout": {"worst_case_s": 10}, "training": {"worst_case_s": 5}}
    return {"version": 1, "cluster": {"rollout": pool, "training": dict(pool)}, "jobs": [job]}


def placed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the file with a value put at `path` ("jobs.0.slo"); mappings on the way are made."""
    data = copy.deepcopy(data)
    at: Any = data
    *way, last = path.split(".")
    for part in way:
        at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
    at[last] = value
    return data


def without(data: dict[str, Any], path: str) -> dict[str, Any]:
    data = copy.deepcopy(data)
    at: Any = data
    *way, last = path.split(".")
    for part in way:
        at = at[int(part)] if isinstance(at, list) else at[part]
    del at[last]
    return data


def error_of(data: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        parse_scenario(data, "f.yaml")
    return str(caught.value).removeprefix("f.yaml: ")


def test_absent_keys_take_the_documented_defaults() -> None:
    scenario = parse_scenario(small())
    cluster, job = scenario.cluster, scenario.jobs[0]
    assert (cluster.max_group_size, cluster.migration_s) == (5, 300)
    for pool in cluster.pools.values():
        assert (pool.gpu, pool.node_memory_gb, pool.max_nodes, pool.usd_per_node_hour) == ("", None, None, 16)
    for phase in (job.rollout, job.training):
        assert (phase.nodes, phase.host_memory_gb, phase.actual) == (1, 0, None)
        assert (phase.switch.warm_s, phase.switch.cold_s) == (0, 0)
    assert (job.sync_s, job.drift, job.colocated, job.duration_s) == (0, (), None, None)
    actual = parse_scenario(placed(small(), "jobs.0.rollout.actual", {"mean_fraction": 0.6})).jobs[0].rollout.actual
    assert actual is not None and (actual.cv, actual.cap) == (0, True)


def test_a_job_can_be_moved_unless_it_says_otherwise() -> None:
    plain, said, fixed = map(parse_scenario, (small(), *(placed(small(), "jobs.0.movable", value) for value in (True, False))))
    assert plain.jobs[0].movable and said == plain and not fixed.jobs[0].movable
    assert "movable" not in plain.canonical_json() and said.sha256 == plain.sha256 != fixed.sha256
    assert parse_scenario(json.loads(fixed.canonical_json())) == fixed
    for value in (None, 1, "no"):
        assert error_of(placed(small(), "jobs.0.movable", value)).startswith("jobs[0].movable: ")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load(path: Path) -> None:
    assert load_scenario(path).jobs


def test_the_file_on_the_documentation_page_loads(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "scenario.md").read_text()
    (tmp_path / "page.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert [job.id for job in load_scenario(tmp_path / "page.yaml").jobs] == ["math-7b", "code-7b"]


def test_the_quickstart_shows_what_a_file_can_hold() -> None:
    scenario = load_scenario(ROOT / "examples" / "quickstart.yaml")
    jobs = {job.id: job for job in scenario.jobs}
    assert jobs["math-7b"].slo == 1.5 and jobs["math-32b"].slo == 2  # from defaults, and overridden
    assert jobs["math-32b"].rollout.nodes == 2
    assert [jobs["agent-a"].training_s(n) for n in (1, 2, 3)] == [120.5, 62, 62]
    assert jobs["chat-3b"].drift and jobs["chat-3b"].colocated


REQUIRED = [
    "version",
    "cluster",
    "jobs",
    "cluster.rollout",
    "cluster.training",
    *(f"cluster.{pool}.{key}" for pool in ("rollout", "training") for key in ("gpus_per_node", "usd_per_gpu_hour")),
    *(f"jobs.0.{key}" for key in ("id", "arrival_s", "slo", "rollout", "training")),
    "jobs.0.rollout.worst_case_s",
    "jobs.0.training.worst_case_s",
]


@pytest.mark.parametrize("path", REQUIRED)
def test_a_missing_key_is_named_by_its_path(path: str) -> None:
    assert error_of(without(small(), path)) == f"{path.replace('.0', '[0]')}: is missing"


@pytest.mark.parametrize("at", ["", "cluster.", "cluster.rollout.", "jobs.0.", "jobs.0.training.", "jobs.0.rollout.switch."])
def test_an_unknown_key_is_refused(at: str) -> None:
    assert error_of(placed(small(), f"{at}colour", 1)) == f"{at.replace('.0', '[0]')}colour: is not a key of this file format"


def test_a_mistyped_key_is_said_before_the_key_that_it_leaves_missing() -> None:
    data = small()
    data["jobs"][0]["slos"] = data["jobs"][0].pop("slo")
    assert error_of(data).startswith("jobs[0].slos: ")


POSITIVE = [
    "jobs.0.rollout.worst_case_s",
    "jobs.0.training.worst_case_s",
    "jobs.0.training.by_nodes.2",
    "jobs.0.rollout.actual.mean_fraction",
]
NOT_NEGATIVE = [
    "jobs.0.arrival_s",
    "jobs.0.sync_s",
    "cluster.migration_s",
    "cluster.rollout.usd_per_gpu_hour",
    "cluster.training.node_memory_gb",
    "cluster.rollout.device_memory_gb",
    "jobs.0.rollout.host_memory_gb",
    "jobs.0.training.device_gb",
    "jobs.0.training.switch.warm_s",
    "jobs.0.training.switch.cold_s",
]
COUNTS = [
    "jobs.0.iterations",
    "jobs.0.rollout.nodes",
    "jobs.0.training.nodes",
    "cluster.rollout.gpus_per_node",
    "cluster.training.max_nodes",
    "cluster.max_group_size",
]


@pytest.mark.parametrize("path", [*POSITIVE, *NOT_NEGATIVE, "jobs.0.slo"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e300, -1, "5", True, [], {}, "nan"])
def test_a_number_must_be_a_finite_number_in_range(path: str, value: Any) -> None:
    written = path.replace("jobs.0", "jobs[0]").replace(".2", "[2]").replace("by_nodes[2]", "by_nodes.2")
    message = error_of(placed(small(), path, value)).replace("by_nodes[2]", "by_nodes.2")
    assert message.startswith(f"{written}: must be ")


@pytest.mark.parametrize("path", POSITIVE)
def test_durations_are_above_zero(path: str) -> None:
    assert error_of(placed(small(), path, 0)).endswith(": must be above 0, not 0")
    parse_scenario(placed(small(), path, 1e-3))


@pytest.mark.parametrize("path", NOT_NEGATIVE)
def test_the_other_times_memory_and_prices_may_be_zero(path: str) -> None:
    parse_scenario(placed(small(), path, 0))


def test_an_slo_is_at_least_one() -> None:
    parse_scenario(placed(small(), "jobs.0.slo", 1))
    assert error_of(placed(small(), "jobs.0.slo", 0.99)) == "jobs[0].slo: must be at least 1, not 0.99"


@pytest.mark.parametrize("path", COUNTS)
def test_counts_are_whole_numbers_from_one(path: str) -> None:
    written = path.replace(".0", "[0]")
    assert error_of(placed(small(), path, 0)) == f"{written}: must be at least 1, not 0"
    assert error_of(placed(small(), path, 1.5)) == f"{written}: must be a whole number, not 1.5"
    assert error_of(placed(small(), path, True)) == f"{written}: must be a whole number, not true"
    assert error_of(placed(small(), path, 10**5000)).startswith(f"{written}: must be ")
    assert parse_scenario(placed(small(), path, 4.0)) == parse_scenario(placed(small(), path, 4))


def test_a_phase_has_at_most_4096_nodes() -> None:
    parse_scenario(placed(small(), "jobs.0.rollout.nodes", 4096))
    assert error_of(placed(small(), "jobs.0.rollout.nodes", 4097)) == "jobs[0].rollout.nodes: must be at most 4096, not 4097"


def test_a_staleness_is_a_whole_number_up_to_64_and_none_is_written_where_there_is_none() -> None:
    for value in (0, 1, 64, 2.0):
        assert parse_scenario(placed(small(), "jobs.0.staleness", value)).jobs[0].staleness == value
    for value, said in ((-1, "at least 0, not -1"), (65, "at most 64, not 65"), (1.5, "a whole number, not 1.5")):
        assert error_of(placed(small(), "jobs.0.staleness", value)) == f"jobs[0].staleness: must be {said}"
    assert parse_scenario(placed(small(), "jobs.0.staleness", 0)).sha256 == parse_scenario(small()).sha256
    assert parse_scenario(placed(small(), "jobs.0.staleness", 1)).sha256 != parse_scenario(small()).sha256


def test_a_stale_job_does_not_go_on_one_device() -> None:
    data = placed(placed(small(), "cluster.one_device", True), "jobs.0.staleness", 1)
    why = "does not go with cluster.one_device: a device runs one phase after the other"
    assert error_of(data) == f"jobs[0].staleness: {why}"


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64, "-", "2024-01-01"])
def test_valid_ids(name: str) -> None:
    assert parse_scenario(placed(small(), "jobs.0.id", name)).jobs[0].id == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a\n", "é", "a/b", "\ud800", "x" * 10**6, "\x1b[2J"], ids=describe)
def test_an_invalid_id_is_told_what_an_id_may_hold(name: str) -> None:
    message = error_of(placed(small(), "jobs.0.id", name))
    assert message.startswith("jobs[0].id: may hold 1 to 64 letters A-Z and a-z, digits, dots, underscores and hyphens, not '")
    assert message.isprintable() and len(message) < 300


@pytest.mark.parametrize(("name", "said"), [(7, "the number 7"), (1.5, "the number 1.5"), (True, "the boolean true")])
def test_an_id_that_reads_as_a_number_is_told_to_be_quoted(name: Any, said: str) -> None:
    assert error_of(placed(small(), "jobs.0.id", name)) == f"jobs[0].id: must be text, not {said}: quote it"


def test_ids_are_unique() -> None:
    data = small()
    data["jobs"].append(copy.deepcopy(data["jobs"][0]))
    assert error_of(data) == "jobs[1].id: 'a' is also the id of jobs[0]"


def test_a_job_stays_for_iterations_or_for_seconds() -> None:
    either = "jobs[0]: needs exactly one of iterations and duration_s; "
    assert error_of(without(small(), "jobs.0.iterations")) == f"{either}neither is given"
    assert error_of(placed(small(), "jobs.0.duration_s", 60)) == f"{either}both are given"
    assert error_of(placed(small(), "jobs.0.iterations", None)) == "jobs[0].iterations: must be a number, not null"
    assert parse_scenario(placed(without(small(), "jobs.0.iterations"), "jobs.0.duration_s", 60)).jobs[0].duration_s == 60


def test_by_nodes_takes_integers_or_their_strings() -> None:
    text, number = ({"4": 3, "2": 4}, {2: 4, 4: 3})
    one, other = (parse_scenario(placed(small(), "jobs.0.training.by_nodes", keys)) for keys in (text, number))
    assert one == other and one.sha256 == other.sha256
    job = one.jobs[0]
    assert [job.training_s(n) for n in (1, 2, 3, 4, 100)] == [5, 4, 4, 3, 3]


@pytest.mark.parametrize("key", ["x", "02", "+2", "2.0", " 2", "", True, None, 2.5, "²", "9" * 5000, "a\nb"], ids=describe)
def test_by_nodes_refuses_what_is_no_number_of_nodes(key: Any) -> None:
    message = error_of(placed(small(), "jobs.0.training.by_nodes", {key: 3}))
    assert message.startswith("jobs[0].training.by_nodes: ") and message.endswith(" is not a number of nodes")
    assert message.isprintable() and len(message) < 120


def test_by_nodes_is_above_the_phases_nodes_and_given_once() -> None:
    data = placed(small(), "jobs.0.training", {"worst_case_s": 5, "nodes": 2, "by_nodes": {2: 3}})
    assert error_of(data) == "jobs[0].training.by_nodes[2]: must be above training.nodes, which is 2"
    data = placed(small(), "jobs.0.training.by_nodes", {2: 3, "2": 3})
    assert error_of(data) == "jobs[0].training.by_nodes: 2 nodes are given twice"
    assert error_of(placed(small(), "jobs.0.rollout.by_nodes", {2: 3})).startswith("jobs[0].rollout.by_nodes: is not a key")


def test_drift_is_in_order() -> None:
    entries = [{"iteration": 0}, {"iteration": 40, "rollout": 1.2}]
    assert [entry.rollout for entry in parse_scenario(placed(small(), "jobs.0.drift", entries)).jobs[0].drift] == [1, 1.2]
    for wrong in (entries[::-1], [entries[1], entries[1]]):
        message = error_of(placed(small(), "jobs.0.drift", wrong))
        assert message == "jobs[0].drift: must be in order of iteration, each iteration once"
    assert error_of(placed(small(), "jobs.0.drift", [{"iteration": -1}])).startswith(
        "jobs[0].drift[0].iteration: must be at least 0"
    )
    assert error_of(placed(small(), "jobs.0.drift", [{}])) == "jobs[0].drift[0].iteration: is missing"


def test_a_colocated_block_is_complete() -> None:
    message = error_of(placed(small(), "jobs.0.colocated", {"nodes": 1, "rollout_s": 3}))
    assert message == "jobs[0].colocated.training_s: is missing"


def test_a_job_that_no_empty_cluster_could_hold_is_refused() -> None:
    for pool in ("rollout", "training"):
        data = placed(placed(small(), f"cluster.{pool}.max_nodes", 2), f"jobs.0.{pool}.nodes", 3)
        assert error_of(data) == f"jobs[0].{pool}.nodes: asks for 3 nodes; the {pool} pool has at most 2"
        data = placed(small(), f"cluster.{pool}.node_memory_gb", 100)
        parse_scenario(placed(data, f"jobs.0.{pool}.host_memory_gb", 100 * (1 + 1e-10)))
        message = error_of(placed(data, f"jobs.0.{pool}.host_memory_gb", 101))
        assert message == f"jobs[0].{pool}.host_memory_gb: asks for 101 GB; a {pool} node has 100 GB"
        data = placed(placed(small(), f"cluster.{pool}.device_memory_gb", 7), f"jobs.0.{pool}.device_gb", 8)
        assert error_of(data) == f"jobs[0].{pool}.device_gb: asks for 8 GB; a {pool} GPU has 7 GB"


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ([{}], "shapes[0]: is empty: it names no key of rollout or training"),
        ([{"rollout": {}}], "shapes[0]: is empty: it names no key of rollout or training"),
        ([{"rollout": {"nodes": 1}}], "shapes[0]: changes nothing: it is the job as it is written"),
        ([{"rollout": {"nodes": 2}}, {"rollout": {"nodes": 2}}], "shapes[1]: is the same as shapes[0]"),
        ([{"rollout": {"nodes": k}} for k in range(2, 19)], "shapes: are 17; a job has at most 16"),
        ([{"rollout": {"nodes": None}}], "shapes[0].rollout.nodes: has no value (null); leave the key out"),
        ([{"sync_s": 1}], "shapes[0].sync_s: is not a key of this file format; did you mean jobs[0].sync_s?"),
        ([{"training": {"by_nodes": {1: 3}}}], "shapes[0].training.by_nodes[1]: must be above training.nodes, which is 1"),
        ([{"rollout": {"by_nodes": {2: 3}}}], "shapes[0].rollout.by_nodes: is not a key of this file format"),
        ([{"rollout": {"nodes": 9}}], "shapes[0].rollout.nodes: asks for 9 nodes; the rollout pool has at most 8"),
        ([{"training": {"host_memory_gb": 9e9}}], "shapes[0].training.host_memory_gb: asks for 9000000000 GB"),
        ([{"rollout": {"pool": "tpu"}}], "shapes[0].rollout.pool: is 'tpu', which is none of rollout, training"),
    ],
    ids=describe,
)
def test_shapes_that_are_none_are_refused(shapes: list[Any], said: str) -> None:
    data = placed(placed(small(), "cluster.rollout.max_nodes", 8), "cluster.training.node_memory_gb", 1000)
    assert error_of(placed(data, "jobs.0.shapes", shapes)).startswith(f"jobs[0].{said}")


def test_a_shape_takes_the_place_of_what_it_names() -> None:
    data = placed(small(), "jobs.0.training.by_nodes", {4: 1.5})
    shapes = [{"rollout": {"nodes": 2}}, {"training": {"host_memory_gb": 7}}, {"training": {"nodes": 2, "by_nodes": {"3": 2}}}]
    job = parse_scenario(placed(data, "jobs.0.shapes", shapes)).jobs[0]
    own = job.phases()
    assert job.phases(1) == (own.rollout.model_copy(update={"nodes": 2}), own.training)
    assert job.phases(2).training == own.training.model_copy(update={"host_memory_gb": 7.0, "by_nodes": {}})
    assert job.phases(3).training == own.training.model_copy(update={"nodes": 2, "by_nodes": {3: 2.0}})
    assert job.solo_s == parse_scenario(data).jobs[0].solo_s


def test_files_without_shapes_say_nothing_of_them() -> None:
    assert "shapes" not in parse_scenario(small()).canonical_json()
    assert parse_scenario(placed(small(), "jobs.0.shapes", [])).sha256 == parse_scenario(small()).sha256
    shaped = parse_scenario(placed(small(), "jobs.0.shapes", [{"rollout": {"nodes": 2, "switch": {"cold_s": 3}}}]))
    assert parse_scenario(json.loads(shaped.canonical_json())) == shaped


def test_a_file_without_device_memory_is_the_same_problem_as_before_there_was_any() -> None:
    assert "device" not in parse_scenario(small()).canonical_json()
    named = placed(placed(small(), "cluster.rollout.device_memory_gb", None), "jobs.0.training.device_gb", 0)
    assert parse_scenario(named).sha256 == parse_scenario(small()).sha256
    more = placed(placed(small(), "cluster.rollout.device_memory_gb", 10), "jobs.0.rollout.device_gb", 1.5)
    assert parse_scenario(json.loads(parse_scenario(more).canonical_json())) == parse_scenario(more)


def test_a_job_that_is_alone_above_its_users_quota_is_refused() -> None:
    for quota, said in (
        ({"nodes": 1}, "asks for 2 nodes; user ann has a quota of 1"),
        ({"usd_per_hour": 31}, "asks for nodes of 32 $/h; user ann has a quota of 31"),
    ):
        data = placed(placed(small(), "cluster.quotas", {"ann": quota}), "jobs.0.user", "ann")
        assert error_of(data) == f"jobs[0]: {said}"
        parse_scenario(placed(data, "jobs.0.user", "bob"))
    nobody = placed(small(), "cluster.quotas", {"": {"nodes": 1}})
    assert error_of(nobody) == "jobs[0]: asks for 2 nodes; the user without a name has a quota of 1"


def test_keys_of_the_queue_are_checked() -> None:
    assert error_of(placed(small(), "jobs.0.budget", {})) == "jobs[0].budget: needs usd, hours or both"
    assert error_of(placed(small(), "jobs.0.budget", {"usd": 0})) == "jobs[0].budget.usd: must be above 0, not 0"
    assert error_of(placed(small(), "jobs.0.priority", 1.5)).startswith("jobs[0].priority: ")
    assert "quote it" in error_of(placed(small(), "jobs.0.user", 7))
    assert "letters" in error_of(placed(small(), "jobs.0.user", "a b"))
    assert "letters" in error_of(placed(small(), "cluster.quotas", {"a b": {"nodes": 3}}))
    job = parse_scenario(placed(small(), "jobs.0.user", "ann.b+c@example.org")).jobs[0]
    assert (job.user, job.priority, job.budget) == ("ann.b+c@example.org", 0, None)


def test_files_without_keys_of_the_queue_say_nothing_of_it() -> None:
    spelled = placed(placed(placed(small(), "jobs.0.user", ""), "jobs.0.priority", 0), "jobs.0.budget", None)
    spelled = placed(spelled, "cluster.quotas", {})
    assert parse_scenario(spelled).sha256 == parse_scenario(small()).sha256
    assert parse_scenario(spelled).queue_key is None
    keyed = placed(placed(small(), "jobs.0.budget.hours", 2), "jobs.0.priority", -1)
    assert parse_scenario(keyed).queue_key == "jobs[0].priority"
    assert parse_scenario(json.loads(parse_scenario(keyed).canonical_json())) == parse_scenario(keyed)


@pytest.mark.parametrize("version", [2, 0, 10**5000], ids=describe)
def test_another_version_is_refused(version: int) -> None:
    assert error_of(placed(small(), "version", version)).startswith(
        "version: must be 1, the only version of this file format, not "
    )


def test_at_least_one_job() -> None:
    assert error_of(placed(small(), "jobs", [])) == "jobs: is empty"
    assert error_of(placed(small(), "jobs", {})) == "jobs: must be a list, not a mapping"
    assert error_of(placed(small(), "jobs", [3])) == "jobs[0]: must be a mapping, not 3"


def test_defaults_are_merged_key_by_key_and_level_by_level() -> None:
    data = without(without(small(), "jobs.0.slo"), "jobs.0.rollout")
    data["defaults"] = {"slo": 1.5, "rollout": {"worst_case_s": 9, "switch": {"warm_s": 1, "cold_s": 2}}, "training": {"nodes": 2}}
    data["jobs"][0]["rollout"] = {"switch": {"cold_s": 3}}
    job = parse_scenario(data).jobs[0]
    assert (job.slo, job.rollout.worst_case_s, job.training.nodes, job.training.worst_case_s) == (1.5, 9, 2, 5)
    assert (job.rollout.switch.warm_s, job.rollout.switch.cold_s) == (1, 3)


def test_a_job_undoes_an_optional_default_with_null_and_replaces_lists_whole() -> None:
    data = small()
    data["defaults"] = {"drift": [{"iteration": 5}], "rollout": {"actual": {"mean_fraction": 0.5}}}
    data["jobs"][0] |= {"drift": []}
    data["jobs"][0]["rollout"]["actual"] = None
    job = parse_scenario(data).jobs[0]
    assert job.drift == () and job.rollout.actual is None


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        (None, "defaults: must be a mapping, not null"),
        ([], "defaults: must be a mapping, not a list"),
        ({"id": "a"}, "defaults.id: every job needs an id of its own"),
        ({"slos": 2}, "defaults.slos: is not a key of this file format; did you mean defaults.slo?"),
        (
            {"rollout": {"nodez": 2}},
            "defaults.rollout.nodez: is not a key of this file format; did you mean defaults.rollout.nodes?",
        ),
        ({"slo": 0}, "defaults.slo: must be at least 1, not 0"),
        ({"rollout": 3}, "defaults.rollout: must be a mapping, not 3"),
        ({"training": {"by_nodes": {"x": 1}}}, "defaults.training.by_nodes: 'x' is not a number of nodes"),
        ({"drift": [{"rollout": 1}]}, "defaults.drift[0].iteration: is missing"),
        ({"iterations": None}, "defaults.iterations: must be a number, not null"),
        ({"iterations": 1, "duration_s": 1}, "defaults: takes at most one of iterations and duration_s; both are given"),
        ({"duration_s": 5}, "jobs[0].iterations: does not go with defaults.duration_s; a job has exactly one of the two"),
    ],
)
def test_what_is_wrong_with_defaults_is_said_of_defaults(defaults: Any, said: str) -> None:
    assert error_of(small() | {"defaults": defaults}) == said


def test_defaults_are_checked_even_where_every_job_overrides_them() -> None:
    data = small() | {"defaults": {"slo": 0.5}}
    assert "slo" in data["jobs"][0]
    assert error_of(data).startswith("defaults.slo: ")


def test_a_default_that_does_not_fit_the_cluster_is_said_to_be_one() -> None:
    data = placed(small(), "cluster.rollout.max_nodes", 2) | {"defaults": {"rollout": {"nodes": 3}}}
    assert error_of(data) == "jobs[0].rollout.nodes: asks for 3 nodes; the rollout pool has at most 2 (set by defaults)"


def test_a_default_may_be_half_of_something() -> None:
    data = small() | {"defaults": {"rollout": {"actual": {"cv": 0.3}}, "colocated": {"nodes": 2}, "training": {"nodes": 2}}}
    data["jobs"][0]["rollout"]["actual"] = {"mean_fraction": 0.5}
    data["jobs"][0]["colocated"] = {"rollout_s": 3, "training_s": 4}
    job = parse_scenario(data).jobs[0]
    assert job.rollout.actual is not None and job.rollout.actual.cv == 0.3
    assert job.colocated is not None and job.colocated.nodes == 2


def test_a_scenario_cannot_be_changed() -> None:
    scenario = parse_scenario(small())
    with pytest.raises(ValueError):
        scenario.jobs[0].slo = 3


def test_models_built_in_code_are_checked_like_files() -> None:
    job = parse_scenario(small()).jobs[0]
    with pytest.raises(ValueError):
        Scenario(version=1, cluster=parse_scenario(small()).cluster, jobs=(job, job))
    with pytest.raises(ValueError):
        Job(id="a", arrival_s=0, slo=1, rollout=job.rollout, training=job.training)


def test_the_hash_is_of_the_problem_not_of_how_it_is_written(tmp_path: Path) -> None:
    plain = parse_scenario(small())
    spelled = placed(placed(small(), "cluster.migration_s", 300.0), "jobs.0.rollout.nodes", 1)
    spelled["jobs"][0]["arrival_s"] = -0.0
    spelled = {key: spelled[key] for key in reversed(spelled)}
    assert parse_scenario(spelled).sha256 == plain.sha256
    assert parse_scenario(placed(small(), "jobs.0.slo", 1.6)).sha256 != plain.sha256
    file = tmp_path / "canonical.json"
    file.write_text(plain.canonical_json())
    assert load_scenario(file) == plain and load_scenario(file).sha256 == plain.sha256


def test_the_hash_of_a_file_does_not_change_between_versions() -> None:
    assert parse_scenario(small()).sha256 == "fa4e05c53f56719e97370736c45d39b184b6aa18e1d523fdfeba518756f64456"


def test_the_largest_numbers_have_finite_sums() -> None:
    data = placed(placed(small(), "jobs.0.rollout.worst_case_s", 1e15), "jobs.0.training.worst_case_s", 1e15)
    assert parse_scenario(data).jobs[0].solo_s == 2e15


POOL = {"gpus_per_node": 8, "usd_per_gpu_hour": 2}


def pooled(**pools: Any) -> dict[str, Any]:
    data = small()
    data["cluster"] = {key: value for key, value in data["cluster"].items() if key not in ("rollout", "training")}
    data["cluster"]["pools"] = pools
    return data


def test_pools_are_a_mapping_and_rollout_and_training_are_short_for_two_of_these_names() -> None:
    two = small()
    long = pooled(**{name: two["cluster"][name] for name in ("training", "rollout")})
    assert parse_scenario(long).sha256 == parse_scenario(two).sha256
    data = placed(placed(pooled(A=POOL, B=POOL), "jobs.0.rollout.pool", "A"), "jobs.0.training.pool", "A")
    scenario = parse_scenario(data)
    assert [*scenario.cluster.pools] == ["A", "B"] and scenario.jobs[0].rollout.pool == scenario.jobs[0].training.pool == "A"
    assert parse_scenario(json.loads(scenario.canonical_json())).sha256 == scenario.sha256
    assert scenario.sha256 != parse_scenario(placed(data, "jobs.0.training.pool", "B")).sha256


BAD_POOLS: dict[str, tuple[dict[str, Any], str]] = {
    "beside rollout": (
        placed(small(), "cluster.pools", {"A": POOL}),
        "cluster.pools: does not go with cluster.rollout, which is short for a pool of that name",
    ),
    "nobody defines": (
        placed(pooled(A=POOL, training=POOL), "jobs.0.rollout.pool", "B"),
        "jobs[0].rollout.pool: is 'B', which is none of A, training",
    ),
    "by default": (pooled(A=POOL, training=POOL), "jobs[0].rollout.pool: is by default 'rollout', which is none of A, training"),
    "none": (pooled(), "cluster.pools: is empty"),
    "a key of a pool": (pooled(A={**POOL, "colour": 1}), "cluster.pools.A.colour: is not a key of this file format"),
    "one device": (
        placed(pooled(A=POOL, training=POOL), "cluster.one_device", True),
        "cluster.pools.A: does not go with one_device, where training is the only pool",
    ),
    "null": (placed(small(), "cluster.rollout", None), "cluster.rollout: has no value (null); it must be a mapping"),
    "too many on both sides": (
        placed(placed(pooled(A={**POOL, "max_nodes": 1}), "jobs.0.rollout.pool", "A"), "jobs.0.training.pool", "A"),
        "jobs[0].training.nodes: rollout and training ask for 2 nodes; the A pool has at most 1",
    ),
}


@pytest.mark.parametrize("name", BAD_POOLS)
def test_pools_that_cannot_be_are_refused(name: str) -> None:
    data, expected = BAD_POOLS[name]
    assert error_of(data) == expected
