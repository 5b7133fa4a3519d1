"""`examples/mini` is the problem that the packages solve: the same periods, candidates, plans, dollars and decisions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

import rollmux_env
from examples.mini import dispatch, model, planner
from examples.mini.env import PlacementEnv, random_stream
from examples.mini.group import TRAINING, Group
from examples.mini.replay import area, replay
from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Solo
from policies.registry import make_runnable
from rollmux_env.cluster import candidates as kernel
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.envs.placement.generator import Fixed
from rollmux_env.replay import fluid
from rollmux_env.replay.admission import Admission, admit_all
from rollmux_env.replay.completion import Completion
from rollmux_env.replay.metrics import metrics
from rollmux_env.scenario import parse_scenario
from tests.oracle import draw
from tests.oracle import period as oracle

ROOT = Path(__file__).parents[2]
CONTRACT = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "tests" / "contract").glob("*.json"))}
EXTENDED = {"every": "pools", "pooled": "pools", "shaped": "shapes", "stale": "staleness"}  # and the key that says so
BASE = sorted(CONTRACT.keys() - EXTENDED)
POLICIES = pytest.mark.parametrize(
    ("ours", "theirs"), [(planner.algorithm1, Algorithm1), (planner.solo, Solo)], ids=["rollmux", "solo"]
)
Row = tuple[int, tuple[int, ...], int, float, float, bool, bool]


def base(scenario: dict[str, Any]) -> dict[str, Any]:
    """A drawn scenario without the keys that are beyond the plain problem."""
    cluster = {**scenario["cluster"]}
    for side in ("rollout", "training"):
        cluster[side] = {key: value for key, value in cluster[side].items() if key != "device_memory_gb"}
    jobs = []
    for drawn in scenario["jobs"]:
        job = {key: value for key, value in drawn.items() if key != "staleness"}
        for side in ("rollout", "training"):
            job[side] = {key: value for key, value in job[side].items() if key != "device_gb"}
        jobs.append(job)
    return {**scenario, "cluster": cluster, "jobs": jobs}


SCENARIOS = st.one_of(draw.scenarios(), draw.scenarios(limited=False), draw.scenarios(fine=True)).map(base)


def close(one: Any, other: Any, rel: float = 1e-7) -> None:
    """Equal in all that `other` has; numbers to six places, or as much of themselves."""
    if isinstance(other, dict):
        for key in other:
            close(one[key], other[key], rel)
    elif isinstance(other, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            close(a, b, rel)
    elif isinstance(other, float):
        assert one == pytest.approx(other, rel=rel, abs=2e-6)
    else:
        assert one == other


def decisions(scenario: dict[str, Any], policy: planner.Policy) -> list[dict[str, Any]]:
    """The plan as `rollmux plan` prints its decisions."""
    read = model.from_dict(scenario)
    choices, _ = planner.plan(read, policy)
    printed: list[dict[str, Any]] = []
    for job, choice in zip(read.jobs, choices, strict=True):
        if choice is None:
            nothing: dict[str, Any] = {"group": None, "delta_usd_per_hour": None, "rollout_nodes": [], "training_nodes": []}
            printed.append({"job": job.id, "strategy": "queued", **nothing})
        else:
            where = {
                "group": choice.group.id,
                "delta_usd_per_hour": choice.usd_per_hour,
                "rollout_nodes": sorted(choice.group.members[-1].nodes),
                "training_nodes": list(range(choice.group.training_nodes)),
            }
            printed.append({"job": job.id, "strategy": choice.strategy, **where})
    return printed


def groups(scenario: dict[str, Any], policy: planner.Policy) -> list[dict[str, Any]]:
    """The groups in the end, as `rollmux plan` prints them."""
    read = model.from_dict(scenario)
    _, state = planner.plan(read, policy)
    return [
        {
            "id": group.id,
            "jobs": [job.id for job in group.jobs],
            "period_s": group.period_s,
            "usd_per_hour": group.usd_per_hour(read.cluster),
            "slowdown": {job.id: group.period_s / job.solo_s for job in group.jobs},
        }
        for group in state.groups
    ]


def as_printed(admission: Admission) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Decisions and groups of the packages, in the same form."""
    made = [
        {
            "job": d.job,
            "strategy": d.strategy,
            "group": d.group,
            "delta_usd_per_hour": d.delta_usd_per_hour,
            "rollout_nodes": list(d.rollout_nodes),
            "training_nodes": list(d.training_nodes),
        }
        for d in admission.decisions
    ]
    names = ("id", "period_s", "usd_per_hour", "slowdown")
    return made, [{**{name: getattr(g, name) for name in names}, "jobs": list(g.jobs)} for g in admission.groups]


# Part 1: the file.


@pytest.mark.parametrize("name", EXTENDED)
def test_keys_beyond_the_plain_problem_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"does not know the key '{EXTENDED[name]}'"):
        model.from_dict(CONTRACT[name]["scenario"])


def test_a_file_is_read_as_the_packages_read_it() -> None:
    """YAML with defaults, and keys of event replays that a plan does not look at."""
    path = ROOT / "examples" / "quickstart.yaml"
    scenario, checked = model.load(path), rollmux_env.scenario.load_scenario(path)
    assert [job.id for job in scenario.jobs] == [job.id for job in checked.jobs]
    assert [job.limit_s for job in scenario.jobs] == pytest.approx([job.slo * job.solo_s for job in checked.jobs])
    close(replay(scenario, planner.algorithm1), figures(fluid.replay(checked, Algorithm1())))


def test_defaults_are_merged_level_by_level() -> None:
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1, "max_nodes": None}
    defaults = {
        "slo": 3,
        "rollout": {"worst_case_s": 9, "host_memory_gb": 7},
        "training": {"worst_case_s": 4, "by_nodes": {"2": 3}},
    }
    job = {"id": "a", "arrival_s": 0, "iterations": 1, "rollout": {"worst_case_s": 5}, "training": {"by_nodes": {"3": 2}}}
    data = {"version": 1, "cluster": {"rollout": pool, "training": pool}, "defaults": defaults, "jobs": [job]}
    ours, theirs = model.from_dict(data).jobs[0], parse_scenario(data).jobs[0]
    assert (ours.limit_s, ours.rollout.host_memory_gb) == (27, 7) == (theirs.slo * theirs.solo_s, theirs.rollout.host_memory_gb)
    seconds = [ours.training.seconds_on(nodes) for nodes in (1, 2, 3, 4)]
    assert seconds == [4, 3, 2, 2] == [theirs.training_s(nodes) for nodes in (1, 2, 3, 4)]


def figures(run: Any) -> dict[str, Any]:
    """Metrics of the packages; here nothing moves, and nobody asks how long jobs waited."""
    others = {"policy", "migrations", *(field.name for field in fields(Completion))}
    return {key: value for key, value in metrics(run).as_dict().items() if key not in others}


# Part 2: the period.


def group_of(members: Sequence[tuple[float, float, float, Sequence[int]]], slo: float = 9) -> Group:
    """A group of (rollout_s, training_s, sync_s, nodes)."""
    group = Group(0, 1, rollout_nodes=tuple(sorted({node for member in members for node in member[3]})))
    for k, (rollout_s, training_s, sync_s, nodes) in enumerate(members):
        rollout, training = model.Phase(rollout_s, len(nodes)), model.Phase(training_s)
        group = group.joined(model.Job(f"j{k}", 0.0, slo, rollout, training, sync_s, iterations=9), tuple(nodes), 0)
    return group


KNOWN = [  # the documented facts: members, max(T_cycle, T_load), period
    ([(20, 11, 0, [1]), (13, 3, 0, [0, 1, 2]), (20, 15, 0, [0])], 35, 39.5),
    ([(5, 5, 0, [0]), (5, 5, 10, [0]), (10, 10, 0, [0])], 20, 22.5),
    ([(5, 5, 0, [0]), (5, 5, 0, [0])], 10, 10),
]


@pytest.mark.parametrize(("members", "bound", "period_s"), KNOWN)
def test_known_periods(members: list[Any], bound: float, period_s: float) -> None:
    group = group_of(members)
    assert max(group.cycle_s, group.load_s) == bound
    assert group.period_s == pytest.approx(period_s, rel=1e-12)
    assert dispatch.measured_period_s(group) == pytest.approx(period_s, rel=1e-12)


@draw.examples(150)
@given(members=draw.group_members(fine=True, stale=False))
def test_the_period_is_the_largest_cycle_ratio(members: list[draw.Member]) -> None:
    expected = oracle.period([(*member[:4], 0) for member in members])
    assert group_of([member[:4] for member in members]).period_s == pytest.approx(float(expected), rel=1e-12)


# Part 3: candidates and Algorithm 1.


@pytest.mark.parametrize("name", BASE)
def test_plans_of_the_contract(name: str) -> None:
    scenario, expected = CONTRACT[name]["scenario"], CONTRACT[name]["expected"]["plan"]
    close(decisions(scenario, planner.algorithm1), expected["decisions"], rel=0)
    close(groups(scenario, planner.algorithm1), expected["groups"], rel=0)


@POLICIES
@draw.examples(60)
@given(scenario=SCENARIOS)
def test_plans_are_those_of_the_kernel(ours: planner.Policy, theirs: Any, scenario: dict[str, Any]) -> None:
    made, shared = as_printed(admit_all(parse_scenario(scenario), theirs()))
    close(decisions(scenario, ours), made)
    close(groups(scenario, ours), shared)


class Follow:
    """Takes any feasible row, and writes all tables down."""

    keeps_slo = True

    def __init__(self, picks: list[int]) -> None:
        self.picks = picks
        self.tables: list[list[Row]] = []

    def decide(self, state: State, event: Event) -> Plan:
        """In the packages."""
        if not isinstance(event, Arrived):
            return ()
        table = kernel.candidates(state, event.job.id)
        feasible = np.flatnonzero(table.feasible)
        if not feasible.size:
            return (Wait(event.job.id),)
        rows = [row_of(table, row) for row in np.flatnonzero(~table.is_group)]
        return (Place(event.job.id, table.placement(feasible[self.pick(rows, feasible.size)])),)

    def __call__(self, entries: Sequence[planner.Candidate]) -> planner.Candidate:
        """In the example."""
        feasible = [entry for entry in entries if entry.feasible]
        return feasible[self.pick([row_of_entry(entry) for entry in entries], len(feasible))]

    def pick(self, rows: list[Row], count: int) -> int:
        self.tables.append(rows)
        return self.picks[len(self.tables) % len(self.picks)] % count


def row_of(table: kernel.CandidateTable, row: int) -> Row:
    nodes = tuple(int(node) for node in table.nodes[row] if node >= 0)
    usd, period_s = float(table.usd_per_hour[row]), float(table.period_s[row])
    feasible, saturated = bool(table.feasible[row]), bool(table.saturated[row])
    return int(table.group[row]), nodes, int(table.new_nodes[row]), usd, period_s, feasible, saturated


def row_of_entry(entry: planner.Candidate) -> Row:
    nodes = entry.group.members[-1].nodes
    group = -1 if entry.strategy == "isolated" else entry.group.id
    old = nodes[: len(nodes) - entry.new_nodes]
    return group, old, entry.new_nodes, entry.usd_per_hour, entry.group.period_s, entry.feasible, entry.saturated


@draw.examples(80)
@given(scenario=SCENARIOS, picks=st.lists(st.integers(0, 99), min_size=1))
def test_candidates_are_those_of_the_kernel(scenario: dict[str, Any], picks: list[int]) -> None:
    """In every decision of a replay whose places are any that are feasible."""
    ours, theirs = Follow(picks), Follow(picks)
    close(replay(model.from_dict(scenario), ours), figures(fluid.replay(parse_scenario(scenario), theirs)))
    assert len(ours.tables) == len(theirs.tables)
    for table, expected in zip(ours.tables, theirs.tables, strict=True):
        assert [(*row[:4], *row[5:]) for row in table] == [(*row[:4], *row[5:]) for row in expected]
        assert [row[4] for row in table] == pytest.approx([row[4] for row in expected], rel=1e-9)


# Part 4: the fluid replay.


@pytest.mark.parametrize("name", BASE)
@POLICIES
def test_bills_of_the_contract(name: str, ours: planner.Policy, theirs: Any) -> None:
    expected = CONTRACT[name]["expected"].get(f"bench_{'solo' if theirs is Solo else 'rollmux'}")
    if expected is not None:
        printed = replay(model.from_dict(CONTRACT[name]["scenario"]), ours)
        close(printed, expected, rel=0)
        assert printed["wait_s"].keys() == expected["wait_s"].keys()


@POLICIES
@draw.examples(60)
@given(scenario=SCENARIOS)
def test_bills_are_those_of_the_kernel(ours: planner.Policy, theirs: Any, scenario: dict[str, Any]) -> None:
    printed, expected = replay(model.from_dict(scenario), ours), figures(fluid.replay(parse_scenario(scenario), theirs()))
    assert printed.keys() == expected.keys() and printed["wait_s"].keys() == expected["wait_s"].keys()
    close(printed, expected)


@draw.examples(12)
@given(scenario=draw.scenarios(max_jobs=6).map(base))
def test_the_queue_in_an_order_is_that_of_the_packages(scenario: dict[str, Any]) -> None:
    theirs = fluid.replay(parse_scenario(scenario), make_runnable("rollmux,order=area"))
    close(replay(model.from_dict(scenario), planner.algorithm1, area), figures(theirs))


# Part 5: phases.


@draw.examples(60)
@given(members=draw.group_members(fine=True, stale=False))
def test_phases_begin_when_the_rounds_say(members: list[draw.Member]) -> None:
    """The dispatcher's phases end when `next_round` says, in every round, and no node runs two at once."""
    group, rounds = group_of([member[:4] for member in members]), 12
    busy_until = dict.fromkeys([TRAINING, *group.rollout_nodes], 0.0)
    ends: dict[tuple[str, str, int], float] = {}
    for part in islice(dispatch.simulate(group), 4 * rounds * len(members)):
        for node in part.nodes:
            assert part.start_s >= busy_until[node]
            busy_until[node] = part.end_s
        ends[part.job, part.kind, part.round] = part.end_s
    free: dict[str | int, float] = dict.fromkeys([*busy_until, *(job.id for job in group.jobs)], 0.0)
    for k in range(rounds):
        free = group.next_round(free)
        for job in group.jobs:
            assert ends[job.id, "training", k] + job.sync_s == pytest.approx(free[job.id], rel=1e-12)


@draw.examples(40)
@given(members=draw.group_members(stale=False))
def test_the_measured_period_is_the_exact_one(members: list[draw.Member]) -> None:
    group = group_of([member[:4] for member in members])
    assert dispatch.measured_period_s(group, settle=1000) == pytest.approx(group.period_s, rel=1e-9)


# Part 6: the environment.


def test_the_environment_is_one() -> None:
    check_env(PlacementEnv(), skip_render_check=True)


@draw.examples(50)
@given(scenario=SCENARIOS, seed=st.integers(0, 999))
def test_the_environment_is_the_one_of_the_package(scenario: dict[str, Any], seed: int) -> None:
    """The same masks, rewards and ends for the same actions."""
    theirs = gymnasium.make("RollMux/Placement-v0", generator=Fixed(parse_scenario(scenario)), candidates=64).unwrapped
    ours = PlacementEnv(lambda _: model.from_dict(scenario), most=64)
    rng, over = np.random.default_rng(seed), False
    ours.reset(seed=0)
    theirs.reset(seed=0)
    while not over:
        mask = ours.action_masks()
        assert mask.tolist() == theirs.action_masks().tolist()  # type: ignore[attr-defined]
        action = rng.choice(np.flatnonzero(mask))
        observation, reward, over, _, info = ours.step(action)
        assert ours.observation_space.contains(observation)
        _, expected, ends, _, last = theirs.step(action)
        assert over == ends and reward == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert info["cost_usd"] == pytest.approx(last["cost_usd"], rel=1e-9)


def test_a_forbidden_action_is_replaced() -> None:
    """No group of its own while all training nodes are rented: action 0 then means the first of the cheapest places."""
    job = {"arrival_s": 0, "iterations": 9, "slo": 4, "rollout": {"worst_case_s": 10}, "training": {"worst_case_s": 5}}
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1}
    cluster = {"rollout": {**pool, "max_nodes": 2}, "training": {**pool, "max_nodes": 1}}
    env = PlacementEnv(lambda _: model.from_dict({"cluster": cluster, "jobs": [{**job, "id": "a"}, {**job, "id": "b"}]}))
    env.reset(seed=0)
    env.step(np.int64(0))
    assert np.flatnonzero(env.action_masks()).tolist() == [1, 2]
    *_, over, _, info = env.step(np.int64(0))
    assert over and info["invalid_action"] and info["admissions"] == {"direct_packing": 1, "rollout_scaling": 0, "isolated": 1}


def test_more_places_than_actions_leave_the_feasible_ones() -> None:
    env = PlacementEnv(most=3)
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            assert observation["mask"].any() and len(env.actions) <= 3
            observation, _, over, _, _ = env.step(np.flatnonzero(observation["mask"])[-1])


def test_streams_of_the_environment_differ_by_seed_alone() -> None:
    streams = [random_stream(np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert streams[0] == streams[1] != streams[2]


# The whole.


def test_a_file_of_another_problem_is_one_line() -> None:
    ran = subprocess.run([sys.executable, "-m", "examples.mini", "examples/shapes.yaml"], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1) and "does not know the key" in ran.stderr


def test_it_prints_plan_picture_and_bill() -> None:
    printed = subprocess.run([sys.executable, "-m", "examples.mini"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "math-7b          isolated" in printed and "rollout 1 |" in printed
    costs = {line.split()[0]: line.split()[1] for line in printed.splitlines() if line.startswith(("solo", "rollmux"))}
    runs = {
        name: fluid.replay(rollmux_env.scenario.load_scenario(ROOT / "examples" / "quickstart.yaml"), policy())
        for name, policy in (("solo", Solo), ("rollmux", Algorithm1))
    }
    assert costs == {name: f"{metrics(run).cost_usd:.2f}" for name, run in runs.items()}


def test_it_is_read_in_an_hour() -> None:
    """500 to 800 lines, and nothing of the packages, so that whoever reads it has read all of it."""
    texts = [path.read_text() for path in sorted((ROOT / "examples" / "mini").glob("*.py"))]
    assert 500 <= sum(len(text.splitlines()) for text in texts) <= 800
    assert not any(f"from {package}" in text for text in texts for package in ("rollmux_env", "policies", "runtime", "trainers"))


def test_a_pipe_whose_reader_has_gone_ends_it_without_a_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = subprocess.run([sys.executable, "-m", "examples.mini"], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (ran.returncode, ran.stderr) == (-signal.SIGPIPE, b"")
