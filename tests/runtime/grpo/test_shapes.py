"""The built-in job in one shape and another: it trains the same, on however many nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Moved, Reprofiled
from runtime.journal.audit import check_run
from runtime.machine import Node, Pool
from tests.runtime.coordinator.conftest import Running, nodes, run
from tests.runtime.grpo.test_job import job

__all__ = ["nodes", "run"]

pytestmark = pytest.mark.long


@pytest.fixture
def five(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Two rollout nodes and three training nodes, which share two cores: what is asked here is not speed."""
    first = {node.pool: node for node in nodes}
    counts: dict[Pool, int] = {"rollout": 2, "training": 3}
    return tuple(replace(first[pool], name=f"{pool}-{k}") for pool, count in counts.items() for k in range(count))


@pytest.mark.parametrize("own", [1, 2])
def test_a_job_that_goes_to_another_number_of_training_nodes_and_back_trains_as_one_that_stays(
    run: Running, five: tuple[Node, ...], tmp_path: Path, own: int
) -> None:
    """By checkpoint, from its own shape; and what was estimated of the other one has been measured when it is back."""
    other: dict[str, Any] = {"training": {"nodes": 3 - own}}
    mine = job("a", iterations=24, training={"nodes": own}, shapes=[other], algorithm={"group_size": 4, "max_tokens": 16})
    outcome, moved, lines = run(
        [mine], policy="examples.there_and_back:ThereAndBack,iterations=8", on=five, folder=tmp_path / "moved"
    )
    assert outcome == "done" and not moved.failed and not moved.restarted, lines
    check_run(moved)
    assert [event.placement.shape for event in moved.log if isinstance(event, Moved)][:2] == [1, 0]
    trainings = [(part.iteration, len(part.nodes)) for part in moved.phases if part.phase == "training" and not part.profile]
    assert [number for number, _ in trainings] == [*range(24)]
    sizes = [size for _, size in trainings]
    assert [size for k, size in enumerate(sizes) if k == 0 or size != sizes[k - 1]][:3] == [own, 3 - own, own]
    (estimate,) = [fact.job.phases(1).training.worst_case_s for fact in moved.profiled]
    known = [event.job.phases(1).training.worst_case_s for event in moved.log if isinstance(event, Reprofiled)]
    assert known and known[0] != estimate

    outcome, stayed, _ = run([mine], policy="solo", on=five, folder=tmp_path / "stayed")
    assert outcome == "done" and not any(isinstance(event, Moved) for event in stayed.log)
    for there, here in zip(moved.iterations, stayed.iterations, strict=True):
        assert there.metrics["loss"] == pytest.approx(here.metrics["loss"], abs=1e-5)
        assert there.metrics["reward"] == here.metrics["reward"]
        assert there.metrics["response_tokens"] == here.metrics["response_tokens"]
