"""A what-if question about a scenario is answered by `bench` of the changed file."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.experiments import bench
from policies.whatif import Change, read_arriving, what_if
from rollmux_env.errors import InputError
from rollmux_env.files import find_file
from rollmux_env.report.results import to_json
from rollmux_env.scenario import load_scenario

FILE = find_file("max_nodes")
ARRIVING = "jobs:\n  - {id: late, arrival_s: 700, iterations: 3, rollout: {worst_case_s: 20}, training: {worst_case_s: 20}}\n"


def test_the_answer_is_bench_of_the_changed_file_to_the_byte(tmp_path: Path) -> None:
    arriving = tmp_path / "arriving.yaml"
    arriving.write_text("version: 1\ndefaults: {slo: 2}\n" + ARRIVING)
    scenario = load_scenario(FILE)
    change = Change({"training": "+1"}, "fleet", "area", ("first",), read_arriving(arriving, scenario.cluster))
    answer = what_if("max_nodes", scenario, "solo", change)

    text = FILE.read_text().replace("usd_per_gpu_hour: 5.28, max_nodes: 2", "usd_per_gpu_hour: 5.28, max_nodes: 3")
    lines = [line for line in text.splitlines() if "id: first" not in line]
    changed = tmp_path / "changed.yaml"
    changed.write_text("\n".join(lines) + "\n  - {slo: 2, " + ARRIVING.split("- {")[1])
    for projection, file, policy in ((answer.before, FILE, "solo"), (answer.after, changed, "fleet,order=area")):
        benched = bench(str(file), [policy])
        assert to_json(projection.as_dict()["run"]) == to_json(benched.as_dict()["runs"][0])
        completions_h = [job.completion_h for job in projection.jobs]
        assert completions_h == [job.completion_s / 3600 for job in benched.runs[0].jobs]
        assert projection.as_dict()["figures"]["mean_completion_h"] == benched.runs[0].figures.mean_completion_h
    assert answer.changes == (
        "training: 3 nodes instead of 2",
        "policy fleet,order=area instead of solo",
        "without first",
        "also arriving: late",
    )


def test_an_order_replaces_that_of_the_policy() -> None:
    assert Change(order="area").policy_after("fleet,order=fair,backfill=true") == "fleet,order=area,backfill=true"
    assert Change(policy="solo").policy_after("fleet,order=fair") == "solo"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            Change({"training": "many"}),
            "--nodes training=many: must be a number of nodes, as in 12, or a difference, as in +2 or -1",
        ),
        (Change({"training": "-2"}), "--nodes training=-2: leaves 0 nodes; there must be at least 1"),
        (Change({"trainers": "+1"}), "--nodes trainers=+1: the pool must be one of rollout, training, not 'trainers'"),
        (Change(without=("secnd",)), "--without secnd: there is no such job; did you mean second?"),
        (Change(without=("first", "second", "third", "patient")), "the changed scenario: jobs: is empty"),
    ],
)
def test_impossible_changes_are_refused_in_one_line(change: Change, problem: str) -> None:
    with pytest.raises(InputError) as error:
        what_if("max_nodes", load_scenario(FILE), "solo", change)
    assert str(error.value).startswith(problem)


def test_a_pool_without_limit_takes_a_number_only() -> None:
    scenario = load_scenario(find_file("quickstart"))
    with pytest.raises(InputError, match=r"has no max_nodes, .*; give a number, as in training=12$"):
        Change({"training": "+1"}).nodes_after(scenario.cluster)
    assert Change({"training": "4"}).words(scenario.cluster, "solo", "solo") == (
        "training: 4 nodes instead of as many as jobs need",
    )


def test_another_order_leaves_out_what_belongs_to_the_present_one() -> None:
    present = "rollmux,order=fair,held_h=0.25,backfill=true"
    assert Change(order="area").policy_after(present) == "rollmux,order=area,backfill=true"
    assert Change(order="fair").policy_after(present) == "rollmux,order=fair,held_h=0.25,backfill=true"
