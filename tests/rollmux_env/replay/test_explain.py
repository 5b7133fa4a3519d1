"""`explain`: beside prices, what a network scores, what the same decision moved, and what that does to all groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rich.console import Group

from policies.api import CandidateTable, State
from policies.placement.algorithm1 import Algorithm1
from policies.placement.consolidate import Consolidate
from policies.placement.learned import Learned
from rollmux_env.bench.streams import workload
from rollmux_env.cluster.events import Admitted, Moved
from rollmux_env.errors import PlanError
from rollmux_env.replay.explain import explain
from rollmux_env.replay.fluid import replay
from rollmux_env.report.decision_tables import alternatives_table
from rollmux_env.report.results import to_json

STREAM = workload("mixed", 0, jobs=30)


def test_the_score_of_the_chosen_candidate_is_the_highest() -> None:
    job = STREAM.jobs[12].id
    found = explain(STREAM, Learned(moves=False), job)["alternatives"]
    scores = {row["verdict"]: row["score"] for row in found}
    assert scores["chosen"] == max(score for score in scores.values() if score is not None)
    assert all((row["score"] is None) == row["verdict"].startswith("dropped") for row in found)
    assert "score" not in explain(STREAM, Algorithm1(), job)["alternatives"][0]


def test_moves_of_the_decision_are_those_that_were_made() -> None:
    log = replay(STREAM, Consolidate()).log
    moves = {event.at_s: event for event in log if isinstance(event, Moved)}
    admitted = next(event for event in log if isinstance(event, Admitted) and event.at_s in moves)
    report = explain(STREAM, Consolidate(), admitted.job_id)
    made = [event for event in log if isinstance(event, Moved) and event.at_s == admitted.at_s]
    assert [(move["job"], move["group"]) for move in report["moves"]] == [(event.job_id, event.placement.group) for event in made]
    assert report["usd_per_hour"]["before"] > 0 and report["usd_per_hour"]["after"] > 0
    assert report["moves"][0]["from_group"] != report["moves"][0]["group"]
    table = alternatives_table({"policy": "consolidate", **report}, 5)
    assert isinstance(table, Group)
    assert any("all groups" in str(part) for part in table.renderables)


class Scored(Algorithm1):
    def __init__(self, scores: Any) -> None:
        super().__init__()
        self._scores = scores

    def scores(self, state: State, table: CandidateTable) -> Any:
        return self._scores(table)


def test_a_policy_of_ones_own_may_have_scores() -> None:
    job = STREAM.jobs[5].id
    rows = explain(STREAM, Scored(lambda table: np.where(table.feasible, -table.usd_per_hour, np.nan)), job)["alternatives"]
    assert all(row["score"] is None or row["score"] == -row["delta_usd_per_hour"] for row in rows)
    masked = explain(STREAM, Scored(lambda table: np.where(table.feasible, -table.usd_per_hour, -np.inf)), job)
    assert to_json(masked) and [row["score"] for row in masked["alternatives"]] == [row["score"] for row in rows]
    unscored = explain(STREAM, Scored(lambda table: np.full(len(table), np.nan)), STREAM.jobs[14].id)["alternatives"]
    lost = [row["verdict"] for row in unscored if row["verdict"].startswith("lost")]
    assert lost and {*lost} == {"lost: has no score"}
    with pytest.raises(PlanError, match="the policy's scores has 1 scores of a candidate table of"):
        explain(STREAM, Scored(lambda table: [0.0]), job)
    with pytest.raises(PlanError, match="the policy raised AttributeError"):
        explain(STREAM, Scored(lambda table: table.worth), job)
