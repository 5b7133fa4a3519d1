"""Jobs that are already somewhere: their entries name nodes, or their owners attach from a host of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import Unprocessable
from rollmux_env.scheduler.facts import Confined
from runtime.journal.facts import Assigned
from runtime.journal.write import record_of
from runtime.service.service import RunService
from tests.runtime.pretend import PAIRS, Served, attached_plan, job, node, served, specs_of

LARGE = {"worst_case_s": 10.0, "host_memory_gb": 7.5}


def at(number: int, job_id: str, **more: Any) -> dict[str, Any]:
    return job(job_id, nodes={"rollout": [f"rollout-{number}"], "training": [f"training-{number}"]}, **more)


def names(answer: dict[str, Any]) -> list[str]:
    return [one["name"] for nodes in answer["nodes"].values() for one in nodes]


def test_a_job_is_placed_where_its_entry_says_that_it_is(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        for job_id, number in (("a", 1), ("b", 1), ("c", 0)):
            answer = await run.leases.attach(job_id, 60.0, "", ())
            assert names(answer) == [f"rollout-{number}", f"training-{number}"]
            await run.iterate(answer["lease"], 0)
        other = await run.replaced()
        facts = await other.stop()
        assert [fact.names for _, fact in record_of(facts).reports_of(Confined)][:1] == [{"rollout-1", "training-1"}]
        assert [fact.node for fact in facts if isinstance(fact, Assigned)][:2] == ["rollout-1", "training-1"]

    served(work, attached_plan(tmp_path, at(1, "a"), at(1, "b"), at(0, "c"), nodes=PAIRS))


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (at(7, "x"), "nodes.rollout: there is no node rollout-7"),
        (job("x", nodes={"rollout": ["training-1"], "training": ["training-0"]}), "nodes.rollout: training-1 is a training node"),
        (at(0, "x", rollout=LARGE, training=LARGE), "nodes: memory of the training nodes"),
        (at(0, "x", slo=1.0, rollout={"worst_case_s": 1.0}), "nodes: an SLO would be broken"),
        (
            job("x", nodes={"rollout": ["rollout-0"], "training": ["training-1"]}),
            "nodes: these nodes are neither free nor those of one group, with all of its training nodes",
        ),
    ],
)
def test_nodes_that_cannot_be_are_refused_with_the_reason(entry: dict[str, Any], problem: str, tmp_path: Path) -> None:
    async def main() -> None:
        service = RunService(attached_plan(tmp_path, at(0, "a"), nodes=PAIRS))
        await service.serve(None)
        assert service.driver is not None
        await service.driver.leases.attach("a", 60.0, "", ())
        with pytest.raises(Unprocessable) as refused:
            await service.submit(specs_of(entry))
        assert str(refused.value) == f"job x: {problem}"
        await service.stop()
        await service.ended()

    import asyncio

    asyncio.run(main())


def test_an_owner_on_a_host_of_the_cluster_gets_nodes_of_that_host(tmp_path: Path) -> None:
    """Names of hosts are compared by their first label and without case, as they are everywhere."""
    one, two = "one.cluster.internal", "two.cluster.internal"
    hosts = (node("rollout-0", one), node("training-0", one), node("rollout-1", two), node("training-1", "two"))

    async def work(run: Served) -> None:
        await run.settle()
        for job_id, host, number in (("a", "TWO", 1), ("b", "one", 0)):
            answer = await run.leases.attach(job_id, 60.0, host, ())
            assert names(answer) == [f"rollout-{number}", f"training-{number}"], job_id
            await run.iterate(answer["lease"], 0)
        assert await run.place("c", "elsewhere")
        with pytest.raises(Unprocessable, match=r"rollout\.nodes: asks for 2 nodes; one\.cluster\.internal has 1 of this pool"):
            await run.leases.attach("d", 60.0, "one", ())
        await run.stop()

    wide = {"worst_case_s": 10.0, "nodes": 2}
    served(work, attached_plan(tmp_path, job("a"), job("b"), job("c"), job("d", rollout=wide, arrival_s=1e6), nodes=hosts))
