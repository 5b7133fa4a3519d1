"""Which parts of their nodes rollouts use beside a migrated tail: without a clock, and in real runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.errors import InvariantError
from rollmux_env.scheduler.holding import HeldParts, kept_parts
from rollmux_env.scheduler.nodes import NodePool
from rollmux_env.timing.tail import Migration
from runtime.compare import compare
from runtime.journal.audit import check_run
from runtime.journal.facts import NodeShareSpan
from runtime.journal.write import record_of
from runtime.machine import Node
from tests.runtime.coordinator.conftest import Running
from tests.runtime.journal.test_write import FACTS


def node(number: int, cores: int = 1, gpus: int = 0) -> Node:
    return Node(f"rollout-{number}", "rollout", "m", tuple(range(cores)), tuple(range(gpus)), 4.0, "")


def engines(node: Node) -> list[Node]:
    """A part for each GPU of a node."""
    return [replace(node, gpus=(gpu,)) for gpu in node.gpus] or [node]


ONE, TWO = (node(0),), (node(0), node(1))
EIGHT = (node(0, gpus=8),)
QUARTER = Migration(0.8, 0.25)


def test_a_tail_keeps_a_share_of_every_node_or_a_whole_node_that_nobody_waits_for() -> None:
    assert kept_parts(engines(EIGHT[0]), {"rollout-0"}, QUARTER) == (0, 1)
    assert len(kept_parts(engines(EIGHT[0]), {"rollout-0"}, Migration())) == 4
    two = [part for one in (node(0, gpus=8), node(1, gpus=8)) for part in engines(one)]
    assert [two[k].name for k in kept_parts(two, {"rollout-0"}, QUARTER)] == ["rollout-0", "rollout-0", "rollout-1", "rollout-1"]
    assert (
        kept_parts(TWO, {"rollout-0"}, QUARTER) == (1,)
        and kept_parts(TWO, {"rollout-1"}, QUARTER) == (0,)
        and kept_parts(TWO, {"rollout-0", "rollout-1"}, QUARTER) == (0,)
    )


def test_the_next_rollout_begins_when_the_tail_has_left_and_gets_the_rest_when_it_is_over() -> None:
    tails = HeldParts(NodePool(TWO), QUARTER)
    assert tails.begin("a", TWO, TWO, 0.0) is False
    with pytest.raises(InvariantError, match="R3"):
        tails.begin("b", TWO, TWO, 0.5)
    tails.migrate("a", {"rollout-0", "rollout-1"})
    assert tails.begin("b", TWO, TWO, 1.0) is None  # it still holds both
    assert tails.parts("a") == (0,)
    tails.left("a", 2.0)
    assert tails.begin("b", TWO, TWO, 2.0) is True
    assert tails.parts("b") == (1,) and not tails.grow(2.5)
    assert tails.spans("a", 3.0) == (
        NodeShareSpan("rollout-0", 0.0, 2.0, 1.0, False),
        NodeShareSpan("rollout-1", 0.0, 2.0, 1.0, False),
        NodeShareSpan("rollout-0", 2.0, 3.0, 1.0, True),
    )
    tails.end("a")
    assert tails.grow(3.0) == ["b"] and tails.parts("b") == (0, 1)
    tails.left("b", 3.1)  # it left nothing
    assert tails.spans("b", 4.0) == (
        NodeShareSpan("rollout-1", 2.0, 3.0, 1.0, False),
        NodeShareSpan("rollout-0", 3.0, 4.0, 1.0, False),
        NodeShareSpan("rollout-1", 3.0, 4.0, 1.0, False),
    )


def test_who_cannot_do_with_a_part_waits_for_the_tail_that_is_in_the_way() -> None:
    tails = HeldParts(NodePool(TWO), QUARTER)
    tails.begin("a", TWO, TWO, 0.0)
    tails.migrate("a", {"rollout-1"})
    tails.left("a", 1.0)
    assert tails.parts("a") == (0,)
    assert tails.begin("whole", TWO, (), 1.0) is None
    assert tails.begin("elsewhere", (node(1),), (), 1.0) is True
    assert tails.begin("there", ONE, (), 1.0) is None and tails.begin("there", ONE, ONE, 1.0) is None
    tails.end("elsewhere")
    tails.end("a")
    assert tails.begin("whole", TWO, (), 2.0) is True
    assert tails.spans("whole", 3.0) == ()


def test_a_rollout_that_ends_before_it_has_left_frees_everything() -> None:
    tails = HeldParts(NodePool(EIGHT), QUARTER)
    parts = tuple(engines(EIGHT[0]))
    tails.begin("a", EIGHT, parts, 0.0)
    tails.migrate("a", set())
    tails.end("a")
    assert tails.begin("b", EIGHT, parts, 1.0) is True and tails.parts("b") == tuple(range(8))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["begin", "migrate", "left", "end"])), max_size=60))
def test_no_device_is_ever_held_by_two(steps: list[tuple[str, str]]) -> None:
    """The pool raises if one is; and whatever has happened, a rollout that waits begins at last."""
    nodes = (node(0, gpus=2), node(1, gpus=2))
    parts = tuple(part for one in nodes for part in engines(one))
    tails, full, tail = HeldParts(NodePool(nodes), QUARTER), set[str](), set[str]()
    for k, (job_id, what) in enumerate(steps):
        now_s = float(k)
        if what == "begin" and not full and job_id not in tail:
            if tails.begin(job_id, nodes, parts, now_s) is not None:
                full.add(job_id)
        elif what == "migrate" and job_id in full and not tail:
            tails.grow(now_s)
            tails.migrate(job_id, set())
            full.remove(job_id)
            tail.add(job_id)
        elif what == "left" and job_id in full | tail:
            tails.left(job_id, now_s)
        elif what == "end" and job_id in full | tail:
            assert all(0 < span.share <= 1 for span in tails.spans(job_id, now_s))
            tails.end(job_id)
            full.discard(job_id)
            tail.discard(job_id)
            tails.grow(now_s)
    for job_id in full | tail:
        tails.end(job_id)
    assert tails.begin("d", nodes, (), 99.0) is not None
    assert nodes[0].devices == (0, 1)


def test_tails_move_and_the_next_rollout_runs_beside_them(run: Running, nodes: tuple[Node, ...], tmp_path: Path) -> None:
    rollout = next(one for one in nodes if one.pool == "rollout")
    on = (*nodes, replace(rollout, name="rollout-1"))
    # The first rollout of `b` needs all nodes, so `a` begins after it: later `b` may be behind its next rollout already, in round
    # robin. The tail of the second one of `a` lasts until `b` has begun beside it, and that rollout until it has the other nodes.
    does = {
        "a": {"step 0": "wait come", "rollout 1": "tail; wait begun"},
        "b": {"rollout 0": "touch come; beside"} | {f"rollout {k}": "beside" for k in (1, 2)},
    }
    wide = {"class": "toy_jobs:TailedCounter", "rollout": {"nodes": 2}, "slo": 1000.0}
    options = {"folder": str(tmp_path), "steps": 0}
    jobs = [{"id": name, **wide, "options": {**options, "does": does[name]}} for name in ("a", "b")]
    outcome, record, _ = run(jobs, on=on, dispatch="round-robin,migrate=0.8")
    assert outcome == "done" and not record.failed
    check_run(record)
    tails = [part for part in record.phases if any(span.tail for span in part.spans)]
    assert tails and all(part.phase == "rollout" and not part.profile for part in tails)
    beside = [
        other
        for part in tails
        for other in record.phases
        if other.job_id != part.job_id and part.start_s < other.start_s < part.end_s and other.phase == "rollout"
    ]
    assert beside  # a rollout began before the one in front of it was over
    for part in beside:
        first, last = part.node_spans()[0], part.node_spans()[-1]
        assert len({span.node for span in part.spans if span.from_s == first.from_s}) == 1 and not first.tail
        assert last.until_s == part.end_s
    (group,) = compare(record)["groups"]
    assert set(group["jobs"]) == {"a", "b"}  # tails are no reason not to compare
    done = {(one.job_id, one.metrics["began_with"], one.metrics["ended_with"]) for one in record.iterations}
    assert {("a", 2, 1), ("b", 1, 2)} <= done


def test_a_job_that_cannot_do_with_a_part_waits_and_is_never_asked(run: Running, nodes: tuple[Node, ...], tmp_path: Path) -> None:
    rollout = next(one for one in nodes if one.pool == "rollout")
    on = (*nodes, replace(rollout, name="rollout-1"))
    wide = {"rollout": {"nodes": 2}, "slo": 1000.0}
    tailed = {"folder": str(tmp_path), "does": {"rollout 0": "touch come", "rollout 1": "tail"}}
    whole = {"folder": str(tmp_path), "does": {"sync 0": "wait come"}}  # so its later rollouts wait for those of the other
    jobs = [
        {"id": "tailed", "class": "toy_jobs:Tailed", **wide, "options": tailed},
        {"id": "whole", "class": "toy_jobs:Sleeper", **wide, "options": whole},
    ]
    outcome, record, _ = run(jobs, on=on, dispatch="round-robin,migrate=0.8")
    assert outcome == "done" and not record.failed
    check_run(record)
    assert any(part.spans for part in record.phases if part.job_id == "tailed")
    assert not any(part.spans for part in record.phases if part.job_id == "whole")


def test_the_record_of_a_run_shows_who_held_what_of_a_node() -> None:
    record = record_of(FACTS)
    name, part = record.phases[0].nodes[0], record.phases[0]
    begins_s, ends_s = part.start_s, part.end_s
    middle_s = (begins_s + ends_s) / 2
    tail = replace(
        part, spans=(NodeShareSpan(name, begins_s, middle_s, 1.0, False), NodeShareSpan(name, middle_s, ends_s, 0.25, True))
    )
    beside = replace(
        part, job_id="b", asked_s=middle_s, start_s=middle_s, spans=(NodeShareSpan(name, middle_s, ends_s, 0.75, False),)
    )
    check_run(replace(record, phases=(tail, beside)))
    runs = replace(record, phases=(tail, beside)).phase_runs(lent=True)
    assert [(run.job_id, run.phase, run.share, run.start_s, run.end_s) for run in runs] == [
        (part.job_id, part.phase, 1.0, begins_s, middle_s),
        (part.job_id, "tail", 0.25, middle_s, ends_s),
        ("b", part.phase, 0.75, middle_s, ends_s),
    ]
    for wrong in (replace(beside, spans=()), replace(beside, spans=(NodeShareSpan(name, middle_s, ends_s, 0.25, True),))):
        with pytest.raises(InvariantError, match="R3"):
            check_run(replace(record, phases=(tail, wrong)))
