"""Real runs in which a rollout policy decides inside rollouts: the size of the engines changes, responses move, samples stay."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.journal.audit import check_run
from runtime.journal.record import RunRecord
from runtime.machine import Node
from tests.runtime.coordinator.conftest import Running, nodes, run
from tests.runtime.grpo.here import always_resizes
from tests.runtime.grpo.test_job import SMALL, job
from tests.runtime.grpo.test_reward_workers import slow

__all__ = ["nodes", "run"]

pytestmark = pytest.mark.long
ALGORITHM = {**SMALL["algorithm"], "max_tokens": 192, "max_prompt_tokens": 16}
MODEL = {"name": "tiny", "hidden_size": 256, "layers": 2}  # whose rollouts take longer than the way of a call to stop


def learned(record: RunRecord) -> list[dict[str, float]]:
    """What every iteration measured, in their order."""
    return [done.metrics for done in record.iterations]


def the_same(one: dict[str, float], other: dict[str, float]) -> None:
    assert one["tokens"] == other["tokens"]
    for name in ("reward", "response_tokens", "cut_off"):  # means of the engines' means
        assert one[name] == pytest.approx(other[name], rel=1e-12), name
    for name in ("loss", "grad_norm", "entropy"):
        assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name


def test_a_run_whose_engines_change_their_size_within_rollouts_and_die_once_samples_the_same(
    run: Running, nodes: tuple[Node, ...], tmp_path: Path
) -> None:
    """On two cores: two engines of one, and one of both, at every step of the policy. An engine is killed in the third rollout."""
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    wide = tuple(replace(node, cores=cores) if node.pool == "rollout" else node for node in nodes)
    policy = always_resizes(tmp_path / "policy")
    sized = {"engine": "torch", "policy": policy, "sizes": [2]}
    found = []
    kinds = ("plain", SMALL["rollout"], -1), ("sized", sized, 16 * 3 + 5)  # rewards; the first 16 are the profile's
    for name, rollout, kill_after in kinds:
        given = slow(tmp_path / f"{name}_calls", {}, kill_after=kill_after) | {
            "rollout": rollout,
            "algorithm": ALGORITHM,
            "model": MODEL,
        }
        outcome, record, lines = run([given], on=wide, folder=tmp_path / name)
        assert outcome == "done" and not record.failed, lines
        check_run(record)
        assert len(record.restarted) == (name == "sized")
        found.append(learned(record))
    assert len(found[0]) == len(found[1]) == 4
    for one, other in zip(*found, strict=True):
        the_same(one, other)
        assert other["engine_size"] in (1, 2)
    assert sum(other["resizes"] for other in found[1]) > 0  # some ended within the step in which they were to be asked


def test_responses_move_between_the_engines_of_two_nodes_from_the_first_rollout_on(run: Running, nodes: tuple[Node, ...]) -> None:
    rollout, training = nodes
    two = (rollout, replace(rollout, name="rollout-1", cores=training.cores), training)
    found = []
    for policy in ("plain", "adaptive-parallelism,margin=0"):
        more: dict[str, Any] = {"rollout": {"engine": "torch", "nodes": 2, "policy": policy}, "task": "long-tail"}
        outcome, record, lines = run([job("a", algorithm=ALGORITHM, **more)], on=two)
        assert outcome == "done" and not record.failed, lines
        check_run(record)
        found.append(learned(record))
    for one, other in zip(*found, strict=True):
        the_same(one, other)
