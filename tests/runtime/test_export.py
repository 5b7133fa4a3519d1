"""A trained model leaves as a Hugging Face folder: in the types of numbers that it came in, however many files that takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import runtime.export
from rollmux_env.errors import InputError
from runtime.checkpoints import begin_checkpoint
from runtime.engines.model_files import read_model_files
from runtime.export import MODELS, export_checkpoint, keep_model
from runtime.grpo.state import ShardedTensor, write_shards
from runtime.jobs.grpo_spec import ModelSpec
from runtime.jobs.models import model_directory
from runtime.jobs.spec import TaskJob
from tests.runtime.engines.models import tiny
from tests.runtime.jobs.task_job import task_job


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskJob:
    """A job that began with a model in bfloat16 and has two checkpoints, the last one of other weights, in float32."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    model: Any = tiny(0, tied=True).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    for file in model_directory(ModelSpec(hidden_size=64, layers=1), 0).glob("tokenizer*"):
        shutil.copyfile(file, tmp_path / "model" / file.name)
    for iterations in (3, 4):
        weights = {f"weights.{name}": tensor.detach() for name, tensor in tiny(iterations, tied=True).named_parameters()}
        moments = {name.replace("weights.", "exp_avg."): tensor for name, tensor in weights.items()}

        def fill(folder: Path, shards: dict[str, Any] = weights | moments) -> None:
            write_shards(folder, 0, shards, {"ranks": 1, "updates": 1})

        begin_checkpoint(tmp_path / "checkpoints", iterations, fill)()
    job = {"id": "a", "slo": 2, "iterations": 4, "task": "echo", "model": "model"}
    return task_job(job, tmp_path)


@pytest.mark.parametrize("shard", ["5GB", "100KB"])
def test_weights_have_the_types_that_they_came_in(
    spec: TaskJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: str
) -> None:
    monkeypatch.setattr(runtime.export, "_SHARD", shard)
    assert export_checkpoint(tmp_path / "checkpoints", 9, spec, tmp_path / "out") == 4
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) == 1 if shard == "5GB" else len(files) > 3
    assert {tensor.dtype for file in files for tensor in load_file(file).values()} == {torch.bfloat16}
    began_with, exported = (read_model_files(tmp_path / name) for name in ("model", "out"))
    assert exported.types() == began_with.types() and {*exported.types().values()} == {"BF16"}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    expected = tiny(4, tied=True).to(torch.bfloat16).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    before = {path.name for path in (tmp_path / "model").iterdir() if path.suffix != ".safetensors"}
    assert before <= {path.name for path in (tmp_path / "out").iterdir()}


def test_the_weights_of_one_file_at_a_time_are_read(spec: TaskJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of several ranks have to be put together in memory."""
    events = list[str]()

    def told(event: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **more: Any) -> Any:
            events.append(event)
            return function(*values, **more)

        return call

    monkeypatch.setattr(runtime.export, "_SHARD", "100KB")
    monkeypatch.setattr(ShardedTensor, "__getitem__", told("read", ShardedTensor.__getitem__))
    monkeypatch.setattr(safetensors.torch, "save_file", told("save", safetensors.torch.save_file))
    export_checkpoint(tmp_path / "checkpoints", 9, spec, tmp_path / "out")
    assert events.count("save") > 3 and events.index("save") < len(events) - events[::-1].index("read")


def test_a_model_that_is_done_is_kept_for_its_owner_alone(spec: TaskJob, tmp_path: Path) -> None:
    for _ in range(2):  # the second time in place of the first
        line = keep_model(tmp_path / "run", tmp_path / "checkpoints", spec)
        assert line == f"its model after 4 iterations is in {tmp_path / 'run' / MODELS / 'a'}"
    kept = [tmp_path / "run" / MODELS, *(tmp_path / "run" / MODELS).rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o700, 0o600}
    assert [path.name for path in (tmp_path / "run" / MODELS).iterdir()] == ["a"]


def test_a_model_that_cannot_be_written_costs_the_job_nothing(spec: TaskJob, tmp_path: Path) -> None:
    line = keep_model(tmp_path / "run", tmp_path / "none", spec)
    assert line == "its model is not written: job a: has no checkpoint that is whole; `rollmux export` tries again"
    (tmp_path / "run").write_text("a file where the folder should be")
    assert keep_model(tmp_path / "run", tmp_path / "checkpoints", spec).startswith("its model is not written: ")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        export_checkpoint(tmp_path / "checkpoints", 9, spec, tmp_path / "run" / "x")
