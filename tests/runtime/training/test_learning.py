"""Engine, task and trainer together, in one process: the newborn model learns to count."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.engines import make_engine
from runtime.engines.interface import Sampling
from runtime.jobs.grpo_spec import Algorithm, ModelSpec, TaskSpec
from runtime.jobs.models import load_tokenizer, model_directory
from runtime.jobs.tasks import make_task, score
from runtime.training.batch import make_batch
from runtime.training.trainer import Trainer


def test_rewards_rise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path))
    settings = Algorithm(learning_rate=3e-3, max_tokens=32)
    directory = model_directory(ModelSpec(), 0)
    tokenizer, task = load_tokenizer(directory), make_task(TaskSpec(name="count"), 0)
    engine = make_engine("torch", directory, max_length=40, seed=0, threads=1, tensor_parallel=1)
    trainer = Trainer(directory, settings)
    earned, gaps = [], []
    for version in range(14):
        position = version * settings.prompts_per_iteration
        examples = [x for x in task.prompts(settings.prompts_per_iteration, position) for _ in range(settings.group_size)]
        prompts = [tokenizer(example.prompt)["input_ids"] for example in examples]
        responses = engine.generate(prompts, Sampling(max_tokens=settings.max_tokens, seed=version))
        assert {response.version for response in responses} == {trainer.updates}
        texts = [str(tokenizer.decode([*response.token_ids], skip_special_tokens=True)) for response in responses]
        rewards = [score(task, example, text) for example, text in zip(examples, texts, strict=True)]
        metrics = trainer.update(make_batch(prompts, responses, rewards, settings.group_size))
        engine.update_weights(trainer.weights(), trainer.updates)
        earned.append(sum(rewards) / len(rewards))
        gaps.append(metrics["logprob_gap_max"])
    trainer.close()
    engine.close()
    assert sum(earned[-3:]) > 5 * sum(earned[:3])
    assert max(gaps) < 1e-3  # sampler and trainer agree on what was sampled, every time
