"""The contract's example files: what two independent implementations computed, to six places."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Solo
from rollmux_env.replay.admission import admit_all
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.scenario import parse_scenario
from tests.oracle import planner
from tests.oracle.plan import plan as naive_plan
from tests.oracle.replay import replay as naive_replay

FOLDER = Path(__file__).parents[2] / "contract"
FILES = sorted(FOLDER.glob("*.json"))
EXAMPLES = {path.stem: json.loads(path.read_text()) for path in FILES}


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Equal in all that `expected` has, tuples and lists alike; numbers to the six places of the files."""
    if isinstance(expected, dict):
        for key in expected:
            assert_same(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{where}[{k}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=0, abs=2e-6), where
    else:
        assert found == expected, where


def test_all_examples_are_here() -> None:
    assert len(EXAMPLES) == 11


@pytest.mark.parametrize("name", EXAMPLES)
def test_plan(name: str) -> None:
    expected = EXAMPLES[name]["expected"]["plan"]
    found = admit_all(parse_scenario(EXAMPLES[name]["scenario"]), Algorithm1())
    assert_same([asdict(decision) for decision in found.decisions], expected["decisions"])
    assert_same([asdict(group) for group in found.groups], expected["groups"])
    assert_same(found.usd_per_hour, expected["usd_per_hour"])


@pytest.mark.parametrize(
    ("name", "policy"), [(name, p) for name in EXAMPLES for p in ("rollmux", "solo") if f"bench_{p}" in EXAMPLES[name]["expected"]]
)
def test_bench(name: str, policy: str) -> None:
    expected = EXAMPLES[name]["expected"][f"bench_{policy}"]
    scenario = parse_scenario(EXAMPLES[name]["scenario"])
    found = metrics(replay(scenario, Algorithm1() if policy == "rollmux" else Solo(), check=True)).as_dict()
    assert_same(found, expected)
    assert found["wait_s"].keys() == expected["wait_s"].keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plain_definitions_give_the_same(name: str) -> None:
    scenario, expected = EXAMPLES[name]["scenario"], EXAMPLES[name]["expected"]
    assert_same(naive_plan(scenario), expected["plan"])
    assert_same(naive_replay(scenario), expected["bench_rollmux"])
    if "bench_solo" in expected:
        assert_same(naive_replay(scenario, planner.choose_solo), expected["bench_solo"])
