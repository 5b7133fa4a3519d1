"""The built-in job on real engines and trainers: on-policy, staged syncs, warm switches, moves, and a stop that changes nothing."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollmux_env.cluster.events import Moved
from rollmux_env.errors import InputError
from rollmux_env.timing.trajectories import groups_of, read_trajectories
from runtime.checkpoints import MANIFEST, find_damage
from runtime.engines.pretrained import load_tokenizer
from runtime.export import export_model
from runtime.jobs.grpo_spec import ModelSpec
from runtime.jobs.models import model_directory
from runtime.journal.audit import check_run
from runtime.journal.record import RunRecord
from runtime.journal.write import JOURNAL, read_run
from runtime.machine import Node
from runtime.output import LOGS
from runtime.output import lines as lines_of
from runtime.samples import TRAJECTORIES, read_samples
from tests.runtime.coordinator.conftest import Running, nodes, run, running_on

__all__ = ["nodes", "run"]


SMALL: dict[str, Any] = {
    "model": {"name": "tiny", "hidden_size": 64, "layers": 1},
    "algorithm": {"prompts_per_iteration": 4, "group_size": 4, "max_tokens": 16, "minibatches": 2},
    "rollout": {"engine": "torch"},
    "iterations": 4,
    "slo": 1000.0,
}


def job(job_id: str, **more: Any) -> dict[str, Any]:
    return {**SMALL, "id": job_id, "task": "echo", **more}


def toy(job_id: str, seconds: float, iterations: int) -> dict[str, Any]:
    options = {"rollout_s": seconds, "train_s": seconds}
    return {"id": job_id, "class": "toy_jobs:Sleeper", "options": options, "iterations": iterations, "slo": 1000.0}


class Together(NamedTuple):
    """What two jobs on the same nodes have done, from beginning to end.

    Attributes:
        first: the one called `a`, whose third rollout waits where there is no file `go`. go: that file.
    """

    first: dict[str, Any]
    go: Path
    folder: Path
    record: RunRecord


@pytest.fixture(scope="module")
def together(nodes: tuple[Node, ...], tmp_path_factory: pytest.TempPathFactory) -> Together:
    """One run for two tests: its processes import torch and transformers, which takes longest."""
    below = tmp_path_factory.mktemp("together")
    go, folder = below / "go", below / "x"
    waits = {"name": "tests.runtime.toy_tasks:Waits", "options": {"position": 8, "file": str(go)}}
    first = job("a", seed=1, iterations=5, task=waits, checkpoint={"every": 3})
    go.touch()
    outcome, record, _ = running_on(nodes, below)([first, job("b", seed=2, task="count")], compare=True, folder=folder)
    assert outcome == "done" and not record.failed
    return Together(first, go, folder, record)


def test_two_jobs_share_nodes_and_stay_on_policy(together: Together) -> None:
    record = together.record
    check_run(record)
    for name, iterations in (("a", 5), ("b", 4)):
        mine = [done for done in record.iterations if done.job_id == name]
        versions = [(done.metrics["sampled_version"], done.metrics["trained_version"]) for done in mine]
        assert versions == [(k, k) for k in range(iterations)]  # and what the profiler trained is forgotten
        log = [line for line in lines_of(together.folder / LOGS / name) if "  iteration " in line]
        assert all(
            f"reward {done.metrics['reward']:.4g}, loss {done.metrics['loss']:.4g}, " in log[k] for k, done in enumerate(mine)
        )
        assert all(0 <= done.metrics["reward"] <= 1 and done.metrics["logprob_gap"] < 1e-4 for done in mine)
    warm = [part for part in record.phases if not part.profile]
    assert not any(part.cold for part in warm)
    assert all(part.stages.keys() == {"restore", "stay" if part.stays else "offload"} for part in warm)
    cold = [part for part in record.phases if part.profile and part.cold and part.phase != "init"]
    assert all({"process", "import", "model"} <= part.stages.keys() for part in cold) and len(cold) == 4
    assert all(part.host_gb > 0.05 for part in warm)
    assert len(record.bounds) == 2 and all(bound.gain > 0 for bound in record.bounds)


def test_weights_and_moments_after_a_stop_are_those_of_a_run_without_one(run: Running, together: Together, tmp_path: Path) -> None:
    """Also beside another job, to the bit. Our third rollout waits until the stop is known that came with our second iteration.

    It has no training any more: the checkpoint that the stop asks for is of the second iteration.
    """
    other = {"id": "other", "class": "toy_jobs:Counter", "iterations": 3, "slo": 1000.0}
    jobs, ended = [together.first, other], tmp_path / "ended"
    together.go.unlink()

    def hear(line: str) -> None:
        if "a: iteration 2 of" in line:
            signal.raise_signal(signal.SIGINT)
        if "stopping at the next phase boundary" in line:
            together.go.touch()

    outcome, _, _ = run(jobs, folder=ended, hear=hear)
    assert outcome == "stopped"
    done = [iteration.number for iteration in read_run(ended).iterations if iteration.job_id == "a"]
    assert done in ([0, 1], [0, 1, 2])
    written = [fact.iterations for fact in read_run(ended).checkpointed if fact.job_id == "a"]
    assert written == [len(done)]
    _, record, _ = run(jobs, folder=ended, resume=True)
    check_run(record)
    assert not record.failed and not record.repeated
    metrics = [[done.metrics for done in part.iterations if done.job_id == "a"] for part in (record, together.record)]
    assert metrics[0] == metrics[1] and len(metrics[0]) == 5
    last = [folder / "checkpoints" / "a" / "000005" for folder in (together.folder, ended)]
    assert [find_damage(place) for place in last] == [None, None]
    digests = [json.loads((place / MANIFEST).read_text())["files"]["rank-0.safetensors"] for place in last]
    assert digests[0] == digests[1]
    with safe_open(last[0] / "rank-0.safetensors", "pt") as file:
        kinds = {name.partition(".")[0] for name in file.keys()}  # noqa: SIM118
    assert kinds == {"weights", "exp_avg", "exp_avg_sq"}
    assert not [path for path in last[0].iterdir() if path.suffix in (".pt", ".pkl", ".bin")]
    exported = tmp_path / "exported"
    assert export_model(ended, "a", exported) == 5
    model = AutoModelForCausalLM.from_pretrained(exported)
    trained = load_file(last[0] / "rank-0.safetensors")
    assert all(torch.equal(tensor, trained[f"weights.{name}"]) for name, tensor in model.state_dict().items())
    assert AutoTokenizer.from_pretrained(exported)("1 2")["input_ids"]
    with pytest.raises(InputError, match="exported: is there already; give the name of a new folder"):
        export_model(ended, "a", exported)
    with pytest.raises(InputError, match="job other: is of the class toy_jobs:Counter, which has to write its model itself"):
        export_model(ended, "other", tmp_path / "none")
    with pytest.raises(InputError, match="has no job 'grop'; its jobs are a, other"):
        export_model(ended, "grop", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.long
def test_a_model_with_a_chat_template_trains_on_lines_like_those_of_gsm8k(run: Running, tmp_path: Path) -> None:
    folder = shutil.copytree(model_directory(ModelSpec(hidden_size=64, layers=1), 0), tmp_path / "model")
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    lines = [{"question": f"{a} + {b} = ?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"} for a in range(5) for b in range(5)]
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps(line) for line in [*lines, {"question": "?" * 99, "answer": "0"}]))
    task = {"name": "jsonl", "file": "train.jsonl", "prompt": "question", "system": "Add.", "reward": "number"}
    algorithm = {**SMALL["algorithm"], "max_prompt_tokens": 64, "learning_rate": 1e-4, "lr_scheduler_type": "linear"}
    mine = job("sums", model={"name": str(folder)}, task=task, algorithm=algorithm, folder=str(tmp_path), iterations=3)
    outcome, record, _ = run([mine], folder=tmp_path / "x")
    assert outcome == "done" and not record.failed
    check_run(record)
    rates = [done.metrics["learning_rate"] for done in record.iterations]
    assert rates == pytest.approx([1e-4 * (6 - step) / 6 for step in (1, 3, 5)])  # of the second step of each
    log = [*lines_of(tmp_path / "x" / LOGS / "sums")]
    assert any("train.jsonl: 1 of 26 prompts have more tokens than max_prompt_tokens, 64: left out" in line for line in log)
    shown = read_samples(tmp_path / "x", "sums")
    assert [*shown] == [0, 1, 2] and all(len(groups[0].responses) == 4 for groups in shown.values())
    assert all(
        groups[0].prompt.startswith("system: Add.\nuser: ") and groups[0].prompt.endswith(" = ?\n>") for groups in shown.values()
    )
    path = tmp_path / "x" / TRAJECTORIES / "sums.jsonl"
    trajectories = read_trajectories(path)
    assert sorted({one.iteration for one in trajectories}) == [0, 1, 2]
    assert all(len(group) == 4 for group in groups_of(trajectories, path)) and all(
        one.seconds and one.prompt for one in trajectories
    )
    assert export_model(tmp_path / "x", "sums", tmp_path / "out") == 3
    assert load_tokenizer(tmp_path / "out").chat_template == tokenizer.chat_template


@pytest.mark.long
def test_a_moved_job_goes_on_with_its_weights(run: Running, nodes: tuple[Node, ...], tmp_path: Path) -> None:
    twice = (*nodes, *(replace(node, name=node.name.replace("0", "1")) for node in nodes))
    options = {"journal": str(tmp_path / "x" / JOURNAL), "does": {"rollout 1": "fact Moved mover"}}
    stays = {"id": "stays", "class": "toy_jobs:Sleeper", "options": options, "iterations": 8, "slo": 1000.0}
    policy = "tests.runtime.toy_policies:MoveOnce"
    _, record, _ = run([job("mover", iterations=12), stays], policy=policy, on=twice, folder=tmp_path / "x")
    assert not record.failed
    check_run(record)
    assert any(isinstance(event, Moved) for event in record.log)
    mine = [done for done in record.iterations if done.job_id == "mover"]
    assert [done.metrics["sampled_version"] for done in mine] == [*range(12)]
    assert {part.group for part in record.phases if part.job_id == "mover" and not part.profile} == {0, 1}


@pytest.mark.long
def test_a_migrated_tail_samples_and_trains_the_same(run: Running, nodes: tuple[Node, ...], tmp_path: Path) -> None:
    first = next(node for node in nodes if node.pool == "rollout")
    on = (*nodes, replace(first, name="rollout-1"))  # on the same core: what is asked here is not speed
    algorithm = {**SMALL["algorithm"], "prompts_per_iteration": 6, "max_tokens": 240}
    rollout = {"engine": "torch", "nodes": 2, "policy": "tail-batching", "eta": 1.25}
    mine = job("a", task="long-tail", rollout=rollout, algorithm=algorithm, iterations=6)
    metrics = []
    for dispatch in ("round-robin", "fifo,migrate=0.5"):
        folder = tmp_path / dispatch.partition(",")[0]
        does = {"sync 1": "fact Checkpointed a"}  # it waits for the other's later rollouts, and holds no node meanwhile
        short = {"rollout_s": 0.05, "journal": str(folder / JOURNAL), "does": does}
        other = {"id": "b", "class": "toy_jobs:Tailed", "options": short, "rollout": {"nodes": 2}}
        jobs = [mine, {**other, "iterations": 12, "slo": 1000.0}]
        outcome, record, _ = run(jobs, on=on, dispatch=dispatch, folder=folder)
        assert outcome == "done" and not record.failed
        check_run(record)
        metrics.append([one.metrics for one in record.iterations if one.job_id == "a"])
        tails = [part for part in record.phases if part.job_id == "a" and any(span.tail for span in part.spans)]
        assert bool(tails) == ("migrate" in dispatch)  # the other one waits for the nodes in most iterations
    assert {one["long_round"] for one in metrics[0]} == {0, 1}
    for before, after in zip(*metrics, strict=True):
        assert before["response_tokens"] == after["response_tokens"] and before["tokens"] == after["tokens"]
        assert (before["long_round"], before["queue"]) == (after["long_round"], after["queue"])
        assert before == pytest.approx(after, abs=1e-4)


@pytest.mark.long
def test_what_is_wrong_with_a_job_is_said_of_that_job(run: Running) -> None:
    jobs = [
        toy("good", 0.02, 3),
        job("raises", task={"name": "tests.runtime.toy_tasks:Poison"}),
        job("diverges", algorithm={**SMALL["algorithm"], "learning_rate": 1e15, "max_grad_norm": 1e15}),
    ]
    _, record, _ = run(jobs)
    problems = {failed.job_id: (failed.where, failed.problem) for failed in record.failed}
    assert problems.keys() == {"raises", "diverges"}
    assert problems["raises"][0] == "rollout" and problems["raises"][1].endswith(
        "failed: ValueError: no verifier; the job's log has more"
    )
    assert "finite" in problems["diverges"][1] or "nan" in problems["diverges"][1]
    assert sum(done.job_id == "good" for done in record.iterations) == 3
    check_run(record)
