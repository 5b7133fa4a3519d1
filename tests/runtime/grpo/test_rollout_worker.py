"""What the workers of the built-in job say of the memory that they take."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.engines.torch_engine import TorchEngine
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.grpo.shares import EngineShare, rounds_of
from runtime.jobs.grpo_spec import ModelSpec
from runtime.jobs.models import model_directory
from runtime.machine import Node
from runtime.residency.layout import WeightLayout
from runtime.sync.plan import make_plan
from runtime.sync.streams import send_streams
from runtime.sync.wire import Transfer
from tests.runtime.engines.models import VOCABULARY, tiny
from tests.runtime.jobs.task_job import task_job

_HEADER = 16 << 10  # most that a safetensors header of a small model and the last page take


def test_a_stage_is_counted_before_it_is_filled_and_once_for_all_engines_of_a_machine(tmp_path: Path) -> None:
    model = tiny(0, tied=True).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    for file in model_directory(ModelSpec(hidden_size=64, layers=1), 0).glob("tokenizer*"):
        shutil.copyfile(file, tmp_path / "model" / file.name)
    algorithm = {"max_prompt_tokens": 16, "max_tokens": 8, "prompts_per_iteration": 2, "group_size": 2}
    job = {"id": "a", "slo": 2, "iterations": 1, "task": "echo", "model": "model", "rollout": {"engine": "torch"}}
    spec = task_job(job | {"algorithm": algorithm}, tmp_path)
    node = Node("rollout-0", "rollout", "m", (0,), (), 4.0, "1 core")
    worker, other = (RolloutWorker(spec, k, 2, node) for k in range(2))
    worker.open(None)
    other.open(None, is_stager=False)
    assert worker.ready() == other.ready()
    try:
        before = worker.residency.offload()[0].host
        own = other.residency.offload()[0].host  # its engine's weights
        weights = {name: tensor.detach().float() for name, tensor in model.named_parameters()}
        layout = WeightLayout.of(weights)
        held = ((0, layout.nbytes),)
        transfer = Transfer(1, layout, make_plan([held], ["m"], "aware"), (worker.residency.open_inbox(),), bytes(16))
        with ThreadPoolExecutor() as threads:
            staged = threads.submit(worker.residency.stage, 0, transfer)
            data = torch.cat([weights[name].flatten() for name, *_ in layout.tensors]).view(torch.uint8)
            assert send_streams(0, transfer, 1, data) == staged.result(60)
        for one in (worker, other):
            one.residency.set_staged(worker.residency.staged_version())
        counted = worker.residency.offload()[0].host
        assert VOCABULARY * 4 * 128 < before <= counted <= before + _HEADER
        share = EngineShare(0, rounds_of(spec).next())
        worker.residency.restore()
        worker.begin(0, False, 1, (share,), {})
        once = worker.residency.offload()[0].host  # what is staged is not kept by the engine too
        assert once - _HEADER <= layout.nbytes <= once < counted - layout.nbytes / 2
        worker.residency.restore()
        assert own + layout.nbytes <= before <= own + layout.nbytes + _HEADER
        other.residency.restore()
        other.begin(0, False, 1, (share,), {})
        assert other.residency.offload()[0].host < _HEADER  # it comes back with what the first one keeps
        other.residency.restore()
        for one in (worker, other):
            assert one._engine.version == 1  # noqa: SLF001 (nobody else has it)
    finally:
        other.close()
        worker.close()


ROUND = {"prompts_per_iteration": 24, "group_size": 8}


def worker_on(gpus: tuple[int, ...], rollout: dict[str, Any]) -> RolloutWorker:
    """One of two workers of a job."""
    model = {"name": "tiny", "hidden_size": 64, "layers": 1}
    job = {"id": "a", "slo": 2, "iterations": 1, "task": "echo", "model": model, "algorithm": ROUND, "rollout": rollout}
    return RolloutWorker(task_job(job), 0, 2, Node("rollout-0", "rollout", "m", (0,), gpus, 4.0, ""), ())


@pytest.mark.parametrize(
    ("gpus", "options", "most"), [((0,), {}, 96), ((0,), {"max_num_seqs": 32}, 32), ((), {}, None), ((), {"max_num_seqs": 32}, 32)]
)
def test_vllm_on_a_gpu_has_room_for_its_responses_of_a_round(
    gpus: tuple[int, ...], options: dict[str, int], most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.engines.vllm_problem", lambda *_: None)
    monkeypatch.setattr("runtime.engines.vllm_engine.VllmEngine", lambda folder, options, **_: options)
    worker: Any = worker_on(gpus, {"engine": "vllm", "engine_options": options})
    assert worker._make_engine(model_directory(ModelSpec(hidden_size=64, layers=1), 0)).get("max_num_seqs") == most  # noqa: SLF001


def test_the_torch_engine_samples_on_a_gpu_too() -> None:
    engine = worker_on((0,), {"engine": "torch"})._make_engine(model_directory(ModelSpec(hidden_size=64, layers=1), 0))  # noqa: SLF001
    assert isinstance(engine, TorchEngine)
    engine.close()
