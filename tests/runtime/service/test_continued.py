"""A service that is started again with the options of its first start, as at boot, continues; options that differ are told."""

from __future__ import annotations

import asyncio
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.queue import Quota
from runtime.coordinator.run_plan import RunPlan
from runtime.service.plan import ServiceOptions, past, service_plan
from runtime.service.serve_here import _plan
from runtime.service.service import RunService

POOL = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)
CLUSTER = Cluster(rollout=POOL, training=POOL, migration_s=2.0)
FIRST = ServiceOptions(policy="rollmux,order=fair,held_h=0.25", dispatch="fifo", cluster=CLUSTER)


async def _begin_and_stop(plan: RunPlan) -> None:
    service = RunService(plan)
    await service.serve(None)
    await service.stop()
    await service.ended()


def test_options_given_again_are_compared_with_the_journal(tmp_path: Path) -> None:
    said: list[str] = []

    asyncio.run(_begin_and_stop(_plan(tmp_path, FIRST, None, said.append)))
    plan = _plan(tmp_path, FIRST, None, said.append)
    assert plan.resume and said == []
    larger = CLUSTER.with_quota("ann", Quota(nodes=2)).model_copy(update={"training": Pool(**{**dict(POOL), "max_nodes": 4})})
    other = ServiceOptions(
        policy="consolidate", dispatch="round-robin", seed=3, cluster=larger.model_copy(update={"migration_s": 3.0})
    )
    again = _plan(tmp_path, other, None, said.append)
    assert (again.cluster, again.policy, again.dispatch) == (plan.cluster, plan.policy, plan.dispatch)
    begun = "the service was begun with"
    assert said == [
        f"--policy consolidate: {begun} rollmux,order=fair,held_h=0.25,switches=true, which holds",
        f"--dispatch round-robin: {begun} fifo, which holds",
        f"--seed 3: {begun} 0, which holds",
        "--cluster: cluster.quotas.ann: nodes=2 in the file, none in the journal, which holds (`rollmux quota` changes it)",
        "--cluster: cluster.migration_s: 3.0 in the file, 2.0 in the journal, which holds",
        "--cluster: cluster.training.max_nodes: 4 in the file, 1 in the journal, which holds",
    ]
    with_ray: list[str] = []
    service_plan(tmp_path, other, past(tmp_path), lambda counts: plan.nodes, with_ray.append)
    assert with_ray == said


def test_policy_files_are_found_from_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, shipped in (("placement", "moves"), ("dispatch", "default")):
        shutil.copy(Path(str(files(f"policies.{kind}"))) / "weights" / f"{shipped}.safetensors", tmp_path / f"{kind}.net")
    (service := tmp_path / "service").mkdir()
    options = ServiceOptions("search:learned:placement.net,moves=false", "learned:dispatch.net", cluster=CLUSTER)
    said: list[str] = []
    monkeypatch.chdir(tmp_path)
    asyncio.run(_begin_and_stop(_plan(service, options, None, said.append)))
    assert (_plan(service, options, None, said.append).resume, said) == (True, [])
    monkeypatch.chdir(service)
    plan = _plan(service, ServiceOptions(cluster=CLUSTER), None, said.append)
    assert plan.policy == f"search:learned:{tmp_path}/placement.net,moves=false,switches=true"
    assert plan.dispatch == f"learned:{tmp_path}/dispatch.net"
    asyncio.run(_begin_and_stop(plan))
