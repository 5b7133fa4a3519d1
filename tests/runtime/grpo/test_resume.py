"""A resumed run computes what a run computes that was never stopped, to the bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollmux_env.errors import InputError
from runtime.checkpoints import MANIFEST, damage
from runtime.execution.checks import check_run
from runtime.export import export_model
from runtime.journal import read_run
from tests.runtime.execution.conftest import Running, nodes, run
from tests.runtime.grpo.test_job import job

__all__ = ["nodes", "run"]


def test_weights_and_moments_after_a_stop_are_those_of_a_run_without_one(run: Running, tmp_path: Path) -> None:
    """Both jobs take turns; our third rollout waits until the stop is known that came with our second iteration.

    It has no training any more: the checkpoint that the stop asks for is of the second iteration.
    """
    go = tmp_path / "go"
    waits = {"name": "tests.runtime.toy_tasks:Waits", "options": {"position": 8, "file": str(go)}}
    other = {"id": "other", "class": "toy_jobs:Counter", "iterations": 3, "slo": 1000.0}
    folders = {name: tmp_path / name for name in ("whole", "ended")}
    algorithm = {"prompts_per_iteration": 4, "group_size": 4, "max_tokens": 16, "minibatches": 2}
    jobs = [job("grpo", iterations=5, algorithm=algorithm, task=waits, checkpoint={"every": 3}), other]

    def hear(line: str) -> None:
        if "grpo: iteration 2 of" in line:
            signal.raise_signal(signal.SIGINT)
        if "stopping at the next phase boundary" in line:
            go.touch()

    outcome, _, _ = run(jobs, folder=folders["ended"], hear=hear)
    assert outcome == "stopped"
    done = [iteration.number for iteration in read_run(folders["ended"]).iterations if iteration.job_id == "grpo"]
    assert done in ([0, 1], [0, 1, 2])
    written = [fact.iterations for fact in read_run(folders["ended"]).checkpointed if fact.job_id == "grpo"]
    assert written == [len(done)]
    _, record, _ = run(jobs, folder=folders["ended"], resume=True)
    _, plain, _ = run([jobs[0]], folder=folders["whole"])
    check_run(record)
    assert not record.failed and not record.repeated
    metrics = [[done.metrics for done in part.iterations if done.job_id == "grpo"] for part in (record, plain)]
    assert metrics[0] == metrics[1] and len(metrics[0]) == 5
    last = [folder / "checkpoints" / "grpo" / "000005" for folder in folders.values()]
    assert [damage(place) for place in last] == [None, None]
    digests = [json.loads((place / MANIFEST).read_text())["files"]["rank-0.safetensors"] for place in last]
    assert digests[0] == digests[1]
    with safe_open(last[0] / "rank-0.safetensors", "pt") as file:
        kinds = {name.partition(".")[0] for name in file.keys()}  # noqa: SIM118
    assert kinds == {"weights", "exp_avg", "exp_avg_sq"}
    assert not [path for path in last[0].iterdir() if path.suffix in (".pt", ".pkl", ".bin")]
    exported = tmp_path / "exported"
    assert export_model(folders["ended"], "grpo", exported) == 5
    model = AutoModelForCausalLM.from_pretrained(exported)
    trained = load_file(last[0] / "rank-0.safetensors")
    assert all(torch.equal(tensor, trained[f"weights.{name}"]) for name, tensor in model.state_dict().items())
    assert AutoTokenizer.from_pretrained(exported)("1 2")["input_ids"]
    with pytest.raises(InputError, match="exported: is there already; give the name of a new folder"):
        export_model(folders["ended"], "grpo", exported)
    with pytest.raises(InputError, match="job other: is of the class toy_jobs:Counter, which has to write its model itself"):
        export_model(folders["ended"], "other", tmp_path / "none")
    with pytest.raises(InputError, match="has no job 'grop'; its jobs are grpo, other"):
        export_model(folders["ended"], "grop", tmp_path / "none")
    assert not (tmp_path / "none").exists()
