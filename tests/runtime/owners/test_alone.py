"""A job that keeps more of its nodes' GPUs than it has stated is alone in its group from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.journal.facts import MemoryExceeded
from runtime.journal.write import JOURNAL, read_facts, record_of, state_of
from runtime.machines.nodes import POOLS
from tests.runtime.pretend import PAIRS, Served, attached_plan, job, node, served

SHORT: dict[str, Any] = {"rollout": {"worst_case_s": 1.0}, "training": {"worst_case_s": 1.0}}
STATED = {"worst_case_s": 10.0, "device_gb": 1.0}


def test_others_leave_its_group_and_nobody_joins_it(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        handles = run.driver.run.handles
        greedy, fixed, moves = await run.place("greedy"), await run.place("fixed"), await run.place("moves")
        assert handles["greedy"].place.group == handles["fixed"].place.group == handles["moves"].place.group
        await run.leases.acquire(greedy, "rollout", 0, 60.0)
        await run.leases.release(greedy, "rollout", 0, {}, 1.0)
        assert not handles["greedy"].resident_state.excess
        await run.leases.acquire(greedy, "training", 0, 60.0)
        await run.leases.release(greedy, "training", 0, {}, 2.5)
        why = "keeps 2.50 GB of its training nodes' GPUs and has stated 1.00 GB: alone in its group"
        assert handles["greedy"].resident_state.excess == why
        assert await run.leases.acquire(moves, "rollout", 0, 0.0) == {"granted": False, "move": True}
        await run.leases.end(moves)
        moves = await run.place("moves")
        assert (
            handles["moves"].place.group != handles["greedy"].place.group == handles["fixed"].place.group
        )  # that one cannot be moved
        await run.iterate(fixed, 0)
        other = await run.replaced()
        assert other.driver.run.handles["greedy"].resident_state.excess == why
        facts = await other.stop(permits=False)
        assert [fact.phase for fact in facts if isinstance(fact, MemoryExceeded)] == ["training"]

    jobs = (job("greedy", training=STATED, rollout=STATED), job("fixed", **SHORT), job("moves", movable=True, **SHORT))
    served(work, attached_plan(tmp_path, *jobs, nodes=PAIRS))


def test_two_of_a_group_that_are_to_be_alone_both_are(tmp_path: Path) -> None:
    """Neither joins the other where it goes, nor does who makes room for them; the journal can be read again at any time."""

    async def work(run: Served) -> None:
        leases = {name: await run.place(name) for name in ("greedy", "more", "moves")}
        handles = run.driver.run.handles
        assert len({handle.place.group for handle in handles.values()}) == 1
        for phase in POOLS:
            for name, lease in leases.items():
                assert (await run.leases.acquire(lease, phase, 0, 60.0))["granted"]
                await run.leases.release(lease, phase, 0, {}, 2.5 if phase == "training" and name != "moves" else 1.0)
        for _ in range(3):
            for name in leases:
                if (await run.leases.acquire(leases[name], "rollout", 1, 0.0)).get("move"):
                    await run.leases.end(leases[name])
                    leases[name] = await run.place(name)
            await run.settle()
            state_of(record_of(read_facts(tmp_path / JOURNAL)))
        state = run.driver.run.scheduler.state
        assert len({state.group_of(name).id for name in leases}) == 3
        await run.stop(permits=False)

    short = {**STATED, "worst_case_s": 1.0}
    stated = {"greedy": STATED, "more": short, "moves": short}
    jobs = (job(name, training=phase, rollout=phase, movable=True) for name, phase in stated.items())
    served(work, attached_plan(tmp_path, *jobs, nodes=(*PAIRS, node("rollout-2"), node("training-2"))))
