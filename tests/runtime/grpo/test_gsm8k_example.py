"""examples/gsm8k.yaml, from problems and a random model with a chat template to a folder that transformers and vLLM load."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from runtime.engines import make_engine
from runtime.engines.interface import Kind, Sampling
from runtime.engines.pretrained import load_tokenizer
from runtime.export import MODELS
from runtime.grpo.rewards import Rewards
from runtime.grpo.shares import Prompts
from runtime.jobs.file import load_jobs
from runtime.jobs.spec import TaskJob
from runtime.samples import read_samples
from runtime.training.batch import make_batch
from runtime.training.trainer import Trainer
from tests.conftest import Command
from tests.runtime.coordinator.conftest import Running, nodes, run
from tests.runtime.training.world import weights_of

__all__ = ["nodes", "run"]

pytestmark = pytest.mark.long
EXAMPLES = Path(__file__).parents[3] / "examples"


def greedy(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """The plain definition, by transformers."""
    with torch.no_grad():
        found = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=tokens)
    return found[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> TaskJob:
    """The job of the example, with model and data made by its scripts."""
    home = folder / "gsm8k"
    for script, *arguments in (
        ("small_chat_model.py", str(home)),
        ("gsm8k.py", str(home / "problems.jsonl"), "--to", str(home), "--held-out", "16"),
    ):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    (folder / "gsm8k.yaml").write_text((EXAMPLES / "gsm8k.yaml").read_text())
    (job,) = load_jobs(folder / "gsm8k.yaml").jobs
    assert isinstance(job, TaskJob)
    return job


def test_the_small_model_learns_the_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine, rewards and trainer in one process, with the settings of the example."""
    spec = prepared(tmp_path, monkeypatch)
    settings, directory = spec.settings, spec.path(spec.model.name)
    tokenizer, rewards = load_tokenizer(directory), Rewards(spec)
    prompts = Prompts(spec, tokenizer, rewards)
    longest = settings.max_prompt_tokens + settings.max_tokens
    engine = make_engine("torch", directory, max_length=longest, seed=0, threads=1, tensor_parallel=1)
    trainer = Trainer(directory, settings, steps=spec.iterations * settings.minibatches)
    earned = []
    for version in range(spec.iterations):
        first = version * settings.prompts_per_iteration
        some = prompts.numbered(range(first, first + settings.prompts_per_iteration)).values()
        rows = [prompt for prompt in some for _ in range(settings.group_size)]
        responses = engine.generate([row.tokens for row in rows], Sampling(max_tokens=settings.max_tokens, seed=version))
        texts = [str(tokenizer.decode([*one.token_ids], skip_special_tokens=True)) for one in responses]
        found = [rewards.submit(row.example, lambda text=text: text).result() for row, text in zip(rows, texts, strict=True)]  # type: ignore[misc]
        trainer.update(make_batch([row.tokens for row in rows], responses, found, settings.group_size))
        engine.update_weights(weights_of(trainer), trainer.updates)
        earned.append(sum(found) / len(found))
    for part in (rewards, trainer, engine):
        part.close()
    assert sum(earned[-10:]) > 3 * sum(earned[:5]) * 2, earned


def test_the_example_ends_in_a_model_that_samples_the_same_everywhere(
    run: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = prepared(tmp_path, monkeypatch)
    given = spec.model_dump(by_alias=True, exclude_unset=True)
    outcome, record, lines = run([given | {"iterations": 3, "rollout": {"engine": "torch"}}], folder=tmp_path / "x", models=True)
    assert outcome == "done" and not record.failed
    evaluated = {done.number: done.metrics["eval_reward"] for done in record.iterations if "eval_reward" in done.metrics}
    assert [*evaluated] == [0, 2] and all(0 <= value <= 1 for value in evaluated.values())
    exported = tmp_path / "x" / MODELS / "gsm8k"
    assert any(line.endswith(f"gsm8k: its model after 3 iterations is in {exported}") for line in lines)
    assert read_samples(tmp_path / "x", "gsm8k")[2][0].prompt.startswith("<|im_start|>system\nEnd with: #### NUMBER<|im_end|>")

    tokenizer, model = load_tokenizer(exported), AutoModelForCausalLM.from_pretrained(exported)
    text = str(tokenizer.apply_chat_template([{"role": "user", "content": "1?"}], add_generation_prompt=True, tokenize=False))
    prompts = [tokenizer(text + more)["input_ids"] for more in ("", "a", "12")]
    expected = [greedy(model, prompt, 16) for prompt in prompts]
    kinds: tuple[Kind, ...] = ("torch", "vllm")
    for kind in kinds:
        engine = make_engine(kind, exported, max_length=128, seed=0, threads=1, tensor_parallel=1)
        found = engine.generate(prompts, Sampling(temperature=0.0, max_tokens=16))
        assert [list(response.token_ids) for response in found] == expected
        engine.close()


def test_an_evaluation_does_not_change_what_is_trained(run: Running, tmp_path: Path) -> None:
    """Also over a stop and a resume, after which the same prompts are evaluated."""
    (tmp_path / "data.jsonl").write_text("\n".join(f'{{"prompt": "{k}=", "answer": "{k}"}}' for k in range(9)))
    small = {"model": {"name": "tiny", "hidden_size": 64, "layers": 1}, "rollout": {"engine": "torch"}}
    algorithm = {"prompts_per_iteration": 4, "group_size": 4, "max_tokens": 8}
    task = {"name": "jsonl", "file": str(tmp_path / "data.jsonl"), "reward": "number"}
    job = {"id": "a", "iterations": 4, "slo": 1000.0, "task": task, "algorithm": algorithm, **small}
    evaluation = {"file": str(tmp_path / "data.jsonl"), "every": 2, "prompts": 5}
    _, plain, _ = run([job], folder=tmp_path / "plain")
    _, whole, _ = run([job | {"evaluation": evaluation}], folder=tmp_path / "whole")
    metrics = [[dict(done.metrics) for done in record.iterations] for record in (plain, whole)]
    rewards = {k: one.pop("eval_reward") for k, one in enumerate(metrics[1]) if "eval_reward" in one}
    assert [*rewards] == [0, 2, 3] and metrics[0] == metrics[1]


def test_what_is_wrong_with_a_verifier_is_said_of_its_line(run: Running, tmp_path: Path, command: Command) -> None:
    (tmp_path / "data.jsonl").write_text("\n".join(f'{{"prompt": "{k}=", "answer": "{k}"}}' for k in range(9)))
    (tmp_path / "odd_verifier.py").write_text(
        "import time\n"
        "def hangs(line, response): time.sleep(0 if line['answer'] != '3' else 600); return 1.0\n"
        "def nan(line, response): return float('nan')\n"
        "def raises(line, response): return 1 / 0\n"
    )
    small = {"model": {"name": "tiny", "hidden_size": 64, "layers": 1}, "rollout": {"engine": "torch"}, "slo": 1000.0}
    algorithm = {"prompts_per_iteration": 9, "group_size": 2, "max_tokens": 4, "minibatches": 1}

    def job(name: str) -> dict[str, Any]:
        task = {"name": "jsonl", "file": "data.jsonl", "reward": f"odd_verifier:{name}"}
        rewards = {"timeout": 1.5}
        return {
            "id": name,
            "iterations": 1,
            "task": task,
            "rewards": rewards,
            "folder": str(tmp_path),
            "algorithm": algorithm,
            **small,
        }

    _, record, _ = run([job(name) for name in ("hangs", "nan", "raises")], folder=tmp_path / "x")
    problems = {failed.job_id: failed.problem for failed in record.failed}
    assert problems.keys() == {"nan", "raises"}
    assert all("data.jsonl: line " in problem and problem.endswith("; the job's log has more") for problem in problems.values())
    assert "is nan, no finite number" in problems["nan"] and "failed: ZeroDivisionError" in problems["raises"]
    (done,) = record.iterations
    assert done.metrics["stopped_rewards"] == 2 and done.metrics["reward"] == pytest.approx(16 / 18)
    status, out, _ = command("logs", "hangs", "--at", str(tmp_path / "x"))
    assert status == 0 and out.count("was stopped after 1.5 s and counts as 0") >= 2
    assert "ZeroDivisionError: division by zero" in command("logs", "raises", "--at", str(tmp_path / "x"))[1]
