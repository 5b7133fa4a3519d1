"""A service without Ray takes hosts that are added to its cluster file: at SIGHUP, and when it is started again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.queue import Quota
from rollmux_env.scheduler.facts import Joined
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts, record_of
from runtime.machines.hosts import HostsFile, more_nodes, nodes_of_hosts
from runtime.run import driver
from runtime.service.plan import ServiceOptions
from runtime.service.serve_here import _plan, add_hosts
from runtime.service.service import RunService

POOL = Pool(gpus_per_node=8, usd_per_gpu_hour=1.0)
CLUSTER = Cluster(rollout=POOL, training=POOL, migration_s=0.0)
HOSTS = HostsFile(rollout=("r1",), training=("t1",))
MORE = "cluster: {}\nhosts: {rollout: [r1, r2], training: [t1, t2]}\n"


def test_entries_at_the_end_are_more_nodes() -> None:
    known = nodes_of_hosts(HOSTS, CLUSTER)
    more = more_nodes(HostsFile(rollout=("r1", "r2", "r2"), training=("t1",)), CLUSTER, known)
    assert [(node.name, node.host, node.gpus) for node in more] == [
        ("rollout-1", "r2", tuple(range(8))),
        ("rollout-2", "r2", tuple(range(8, 16))),
    ]
    assert more_nodes(HostsFile(training=("t1",)), CLUSTER, known) == ()  # who is to go is drained
    assert (
        more_nodes(HostsFile(rollout=("R1.cluster.internal",), training=("t1",)), CLUSTER, known) == ()
    )  # it has another name for the same host


def test_nodes_of_this_machine_keep_the_names_of_their_devices_however_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-aa")
    here = f"{os.uname().nodename.upper()}.cluster.internal"
    nodes = nodes_of_hosts(HostsFile(rollout=(here, "far"), training=(os.uname().nodename, "FAR.cluster.internal")), CLUSTER)
    assert [node.gpus for node in nodes] == [("4",), tuple(range(8)), ("GPU-aa",), tuple(range(8, 16))]
    assert [node.host for node in nodes[:2]] == [here, "far"]


def test_this_machine_with_one_gpu_may_be_a_node_of_either_pool_and_not_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa")
    here = os.uname().nodename
    for rollout, training in ((here, "far"), ("far", here)):
        nodes = nodes_of_hosts(HostsFile(rollout=(rollout,), training=(training,)), CLUSTER)
        assert [node.gpus for node in nodes if node.host == here] == [("GPU-aa",)]
        assert [(node.pool, node.host) for node in nodes] == [("rollout", rollout), ("training", training)]
    with pytest.raises(InputError, match="2 nodes are asked of a machine with 1 GPU"):
        nodes_of_hosts(HostsFile(rollout=(here,), training=(here,)), CLUSTER)


@pytest.mark.parametrize(
    ("hosts", "problem"),
    [
        (HostsFile(rollout=("r2", "r1"), training=("t1",)), "hosts.rollout: rollout-0 is r1, not r2; new entries come at the end"),
        (HostsFile(rollout=("r1", "t1"), training=("t1",)), "hosts.rollout: t1 has nodes already; new entries are of other hosts"),
    ],
)
def test_what_is_in_use_is_not_handed_out_anew(hosts: HostsFile, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        more_nodes(hosts, CLUSTER, nodes_of_hosts(HOSTS, CLUSTER))


def test_hosts_of_a_pool_that_a_cluster_does_not_have_are_refused() -> None:
    """An error of another kind would end the service that is to read its file again."""
    problem = "^hosts.rollout: the cluster has no rollout pool: with one_device, all phases run on training nodes$"
    alone = CLUSTER.model_copy(update={"one_device": True})
    for host in ("r1", os.uname().nodename):
        with pytest.raises(InputError, match=problem):
            more_nodes(HostsFile(rollout=(host,), training=("t1",)), alone, ())
    with pytest.raises(InputError, match=r"^hosts.training: the cluster has no training pool$"):
        nodes_of_hosts(HostsFile(training=("t1",)), CLUSTER.model_copy(update={"training": None}))


def test_this_machine_is_a_host_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other hosts the file alone says what they have, so that no two can be compared."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(8))))
    file, folder = tmp_path / "cluster.yaml", tmp_path / "service"
    folder.mkdir()
    here = os.uname().nodename
    file.write_text(f"hosts: {{rollout: [r1, {here}], training: [t1]}}\n")

    async def serve(hosts: HostsFile, cluster: Cluster | None) -> tuple[int, int, list[str]]:
        service = RunService(plan := _plan(folder, ServiceOptions(cluster=cluster), hosts, lambda _: None))
        await service.serve(None)
        add_hosts(service, plan, file)
        report, lines = await service.report(), await service.news(0)
        await service.stop()
        await service.ended()
        return report["pools"]["rollout"]["free"], len(service.driver.lifecycle.node_changes.known), lines

    free, known, lines = asyncio.run(serve(HOSTS, CLUSTER))
    assert (free, known) == (2, 3) and any("rollout-1 has joined: 8 GPU" in line for line in lines)
    file.write_text(f"hosts: {{rollout: [r1, {here}, r2], training: [t1]}}\n")
    free, known, lines = asyncio.run(serve(HostsFile(rollout=("r1", here, "r2"), training=("t1",)), None))
    assert (free, known) == (3, 4) and not any("is not used" in line for line in lines)
    facts = read_facts(folder / JOURNAL)
    assert record_of(facts).cluster.pools["rollout"].max_nodes == 3 and replay_journal(facts).lines == ()


def test_a_service_takes_them_while_it_runs_and_when_it_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "read_facts", None)  # a journal may be long, and is read once for a plan
    file = tmp_path / "cluster.yaml"
    folder = tmp_path / "service"
    folder.mkdir()
    cluster: Cluster | None = CLUSTER
    said: list[str] = []

    def nodes(report: dict[str, dict[str, dict[str, int]]]) -> list[int]:
        return [report["pools"][pool]["free"] for pool in ("rollout", "training")]

    async def serve(hosts: HostsFile | None, text: str) -> tuple[list[int], list[int], list[str]]:
        plan = _plan(folder, ServiceOptions(cluster=cluster), hosts, said.append)
        service = RunService(plan)
        await service.serve(None)
        before = nodes(await service.report())
        file.write_text(text)
        add_hosts(service, plan, file)
        after, lines = nodes(await service.report()), await service.news(0)
        await service.stop()
        await service.ended()
        return before, after, lines

    assert asyncio.run(serve(HOSTS, MORE))[:2] == ([1, 1], [2, 2]) and said == []
    cluster = None
    before, after, lines = asyncio.run(serve(None, "hosts: {rollout: [r3], training: [t1, t2]}\n"))
    assert before == after == [2, 2]
    assert any("hosts.rollout: rollout-0 is r1, not r3" in line for line in lines)
    more = HostsFile(rollout=("r1", "r2", "r3"), training=("t1", "t2"))
    cluster = CLUSTER.with_quota("ann", Quota(nodes=2))
    assert asyncio.run(serve(more, MORE))[:2] == ([3, 2], [3, 2])
    words = "--cluster: cluster.quotas.ann: nodes=2 in the file, none in the journal, which holds (`rollmux quota` changes it)"
    assert said == [words]
    facts = read_facts(folder / JOURNAL)
    joined = [[node.name for node in fact.nodes] for _, fact in record_of(facts).reports_of(Joined)]
    assert joined == [["rollout-1", "training-1"], ["rollout-2"]]
    assert replay_journal(facts).lines == ()
