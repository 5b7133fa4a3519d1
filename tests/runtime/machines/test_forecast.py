"""What jobs will take is said before anything starts, and refused where there is too little whatever they train on."""

from __future__ import annotations

import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rollmux_offload import Offloader, state_of

from rollmux_env.errors import InputError
from rollmux_env.report.fitting import fitted
from rollmux_env.report.tables import WIDTH
from runtime.commands.running import memory_tables
from runtime.engines.memory import ModelSize, sampling_memory
from runtime.gpus import GpuInfo
from runtime.jobs.file import parse_jobs
from runtime.jobs.grpo_spec import Algorithm
from runtime.jobs.spec import TaskJob
from runtime.machine import Node, Pool
from runtime.machines import pools
from runtime.machines.forecast import MemoryForecast, check_memory, forecasts, limits
from runtime.machines.pools import cluster_of, device_room, gpu_memory_gb
from runtime.training.memory import training_peak
from tests.runtime.jobs.task_job import task_job

BILLION = 1_000_000_000
QWEN_7B = ModelSize(7_615_616_512, 1_089_998_336, 233_057_792, 28, 3584, 18_944, 152_064, 28_672)  # Qwen2.5-7B, from its files


def _spec(**training: object) -> TaskJob:
    job = {"id": "a", "iterations": 1, "slo": 2, "task": "echo", "training": {"nodes": 1, **training}}
    return task_job(job)


def _nodes(memory_gb: float, gpus: int = 0) -> list[Node]:
    pools: tuple[Pool, Pool] = ("rollout", "training")
    return [Node(f"{pool}-0", pool, "here", (0,), tuple(range(gpus)), memory_gb, "") for pool in pools]


def _of(size: ModelSize, nodes: list[Node], **training: object) -> MemoryForecast:
    """The forecast of a job with a model of these sizes."""
    spec = _spec(**training)
    (one,) = forecasts([spec], nodes)
    offload, settings = spec.training.cpu_offload, Algorithm(max_tokens=1024)
    return one._replace(size=size, training=training_peak(size, settings, one.ranks, one.on_gpu["training"], offload))


def _said(one: MemoryForecast, nodes: list[Node], gpu_gb: float | None = None) -> list[str]:
    lines: list[str] = []
    check_memory([one], limits(nodes, gpu_gb), lines.append)
    return lines


def test_on_one_device_rollouts_have_the_memory_of_the_training_nodes() -> None:
    both, training = _nodes(8.0, gpus=1), _nodes(8.0, gpus=1)[1:]
    assert limits(training, 80.0)["rollout"] == limits(training, 80.0)["training"]
    assert forecasts([_spec()], training) == forecasts([_spec()], both)


def test_a_7b_trains_on_one_80_gb_gpu_with_its_state_in_host_memory_and_not_otherwise() -> None:
    nodes = _nodes(256.0, gpus=1)
    refused = r"^job a: training on a rank takes 121\.8 GB at least; there are 80\.0; .* training\.cpu_offload: true, help$"
    with pytest.raises(InputError, match=refused):
        _said(_of(QWEN_7B, nodes), nodes, 80.0)
    offloaded = _of(QWEN_7B, nodes, cpu_offload=True)
    assert _said(offloaded, nodes, 80.0) == []
    assert offloaded.training.device < 20 * BILLION and offloaded.training.host == pytest.approx(16 * QWEN_7B.parameters, rel=0.01)
    with pytest.raises(InputError, match=r"state in the host memory of a node takes 121\.8 GB at least; there are 100\.0"):
        _said(offloaded, _nodes(50.0, gpus=1), 80.0)


def test_the_copy_that_a_checkpoint_is_written_from_counts_too() -> None:
    """12 bytes a parameter wait, with 2 of new weights; as long as they are written the state that has gone on is beside them."""
    nodes, state_gb, copy_gb = _nodes(110.0, gpus=1), 14 * QWEN_7B.parameters / 1e9, 12 * QWEN_7B.parameters / 1e9
    one = _of(QWEN_7B, nodes)
    (line,) = _said(one, nodes, 160.0)
    assert line.startswith(
        "a: its training state in the host memory of a node, with the copy that a checkpoint is written from, may"
    )
    assert f"may take {state_gb + copy_gb:.1f} GB; there are 110.0" in line
    assert _said(one, _nodes(200.0, gpus=1), 160.0) == []
    never = one._replace(spec=one.spec.model_copy(update={"checkpoint": one.spec.checkpoint.model_copy(update={"every": "none"})}))
    assert _said(never, nodes, 160.0) == []
    away = _of(QWEN_7B, nodes, cpu_offload=True)
    assert away.written == pytest.approx(12 * QWEN_7B.parameters) and away.waiting == pytest.approx(16 * QWEN_7B.parameters)


def test_a_checkpoint_that_is_being_written_takes_what_is_foretold() -> None:
    """Two segments are there when the state is offloaded anew while somebody still reads the first one."""
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    offloader = Offloader(lambda: state_of(model, optimizer))
    alone = offloader.offload().host
    with offloader.shards(dict(model.named_parameters())):
        offloader.restore()
        both = offloader.offload().host
    size = ModelSize(512 * 513, 0, 512 * 513, 1, 512, 512, 512, 0)
    peak = training_peak(size, Algorithm(), 1, on_gpu=False)
    assert both - alone == pytest.approx(peak.written, rel=0.01)
    offloader.close()


def test_eight_ranks_share_a_state_and_not_what_they_compute_on() -> None:
    one, eight = (_of(QWEN_7B, _nodes(1024.0, gpus)).training for gpus in (1, 8))
    assert eight.sure == pytest.approx(one.sure / 8, rel=1e-6) and eight.logprobs == one.logprobs


def test_what_may_be_too_much_is_a_line_each_and_no_more() -> None:
    size = QWEN_7B._replace(parameters=BILLION // 10, outside=BILLION // 20, layer=BILLION // 560)
    nodes = _nodes(2.0)
    line, copy = _said(_of(size, nodes), nodes)
    assert line.startswith("a: training on a rank may take ") and "; there are 2.0; more training nodes, or a lower" in line
    assert "with the copy that a checkpoint is written from, may take 2.8 GB; there are 2.0; more training nodes help" in copy
    assert _said(_of(size, _nodes(64.0)), _nodes(64.0)) == []
    with pytest.raises(InputError, match=r"there are 1\.0; more training nodes, help"):
        _said(_of(size, nodes), _nodes(0.5))


def test_the_tables_show_every_job_and_add_up() -> None:
    nodes = _nodes(16.0)
    names = ("a", "b" * 64)
    expected = [one._replace(spec=one.spec.model_copy(update={"id": name})) for name in names for one in [_of(QWEN_7B, nodes)]]
    console = Console(width=WIDTH, record=True, file=StringIO())
    console.print(fitted(memory_tables(expected, limits(nodes, None)), WIDTH))
    text = console.export_text()
    assert "7,615.6 M" in text and "recomputed" in text and "float32" in text and max(map(len, text.splitlines())) <= WIDTH
    peak = expected[0].training
    assert peak.device == peak.state + peak.gathered + peak.activations + peak.logprobs
    assert f"{peak.device / 1e9:.2f}" in text and f"{expected[0].sampling.device / 1e9:.2f}" in text


def test_a_job_of_ones_own_is_not_foretold() -> None:
    own = {"id": "a", "iterations": 1, "slo": 2, "class": "my:Job"}
    (spec,) = parse_jobs({"version": 1, "jobs": [own]}, "jobs.yaml", Path()).jobs
    assert forecasts([spec], _nodes(1.0)) == []
    bad = own | {"training": {"cpu_offload": True}}
    with pytest.raises(InputError, match=r"jobs\[0\]\.training\.cpu_offload: is a key of jobs with task, not with class"):
        parse_jobs({"version": 1, "jobs": [bad]}, "jobs.yaml", Path())


@pytest.mark.parametrize(("gpus", "needed"), [(2, r"45\.7"), (4, r"76\.2")])
def test_new_weights_are_staged_once_for_all_engines_of_a_node(gpus: int, needed: str) -> None:
    """A 7B has 15.2 GB in bf16: asleep in each engine, and staged."""
    nodes = _nodes(20.0, gpus)
    (one,) = forecasts([_spec()], nodes)
    assert one.engines == gpus
    one = one._replace(sampling=sampling_memory(QWEN_7B, 1024, 1, True))
    with pytest.raises(InputError, match=rf"^job a: its weights in the host memory of a rollout node takes {needed} GB at least;"):
        _said(one, nodes)


def test_nodes_of_one_machine_are_its_memory() -> None:
    nodes = _nodes(3.0)
    assert limits(nodes, None)["training"] == (3.0, 3.0, 6.0)
    apart = [nodes[0], replace(nodes[1], machine="there")]
    assert limits(apart, None)["training"].machine_gb == 3.0


def test_gpus_have_room_for_what_an_awake_engine_leaves() -> None:
    nodes, own = _nodes(64.0, gpus=2), {"id": "a", "iterations": 1, "slo": 2, "task": "echo"}
    sized = parse_jobs({"version": 1, "jobs": [{**own, "rollout": {"engine_options": {"gpu_memory": 0.5}}}]}, "", Path()).jobs
    assert device_room(sized, nodes, 80.0) == {"rollout": pytest.approx(40.0), "training": 80.0}
    assert device_room((_spec(), *sized), nodes, 80.0) == {"rollout": pytest.approx(16.0), "training": 80.0}
    assert device_room(sized, nodes[1:], 80.0) == {"training": pytest.approx(40.0)}  # one GPU runs both
    assert device_room(sized, _nodes(64.0), 80.0) == device_room(sized, nodes, None) == {}
    found = cluster_of(None, sized, nodes, gpu_gb=80.0)
    assert found.pools["rollout"].device_memory_gb == pytest.approx(40.0) and found.pools["training"].device_memory_gb == 80.0
    given = found.with_pools({"rollout": found.pools["rollout"].model_copy(update={"device_memory_gb": 7.0})})
    assert cluster_of(given, sized, nodes, gpu_gb=80.0).pools["rollout"].device_memory_gb == 7.0
    assert cluster_of(None, sized, _nodes(64.0)).pools["rollout"].device_memory_gb is None


def test_gpus_of_this_machine_say_nothing_about_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "find_gpus", lambda: [GpuInfo("large", 80.0, ""), GpuInfo("small", 40.0, "")])
    own, far = ([replace(node, host=host) for node in _nodes(64.0, gpus=1)] for host in (os.uname().nodename, "far"))
    assert gpu_memory_gb(own) == pytest.approx(42.9, abs=0.1)
    assert gpu_memory_gb(far) is None and gpu_memory_gb([own[0], far[1]]) is None
    assert gpu_memory_gb([replace(node, gpus=()) for node in own]) is None
