"""Engine, task and trainer together, in one process: the newborn model learns to count, from its own samples or older ones."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from runtime.engines import make_engine
from runtime.engines.interface import Response, Sampling
from runtime.engines.pretrained import load_tokenizer
from runtime.jobs.grpo_spec import Algorithm, ModelSpec, TaskSpec
from runtime.jobs.making import make_task
from runtime.jobs.models import model_directory
from runtime.jobs.tasks import score
from runtime.training.batch import make_batch
from runtime.training.trainer import Trainer
from tests.runtime.training.world import weights_of


@pytest.mark.parametrize("staleness", [0, pytest.param(1, marks=pytest.mark.long)])
def test_rewards_rise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int) -> None:
    """With a staleness all but the first rollouts are sampled by weights that are so many versions old."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path))
    settings = Algorithm(learning_rate=3e-3, max_tokens=32)
    directory = model_directory(ModelSpec(), 0)
    tokenizer, task = load_tokenizer(directory), make_task(TaskSpec(name="count"), 0)
    engine = make_engine("torch", directory, max_length=40, seed=0, threads=1, tensor_parallel=1)
    trainer = Trainer(directory, settings)
    earned, gaps = [], []
    waiting: deque[tuple[list[Any], list[Response], list[float]]] = deque()
    for number in range(14 + staleness):
        position = number * settings.prompts_per_iteration
        examples = [x for x in task.prompts(settings.prompts_per_iteration, position) for _ in range(settings.group_size)]
        prompts = [tokenizer(example.prompt)["input_ids"] for example in examples]
        responses = engine.generate(prompts, Sampling(max_tokens=settings.max_tokens, seed=number))
        assert {response.version for response in responses} == {trainer.updates}
        texts = [str(tokenizer.decode([*response.token_ids], skip_special_tokens=True)) for response in responses]
        rewards = [score(task, example, text) for example, text in zip(examples, texts, strict=True)]
        earned.append(sum(rewards) / len(rewards))
        waiting.append((prompts, responses, rewards))
        if number >= staleness:
            metrics = trainer.update(make_batch(*waiting.popleft(), settings.group_size))
            engine.update_weights(weights_of(trainer), trainer.updates)
            gaps.append(metrics["logprob_gap_max"])
    trainer.close()
    engine.close()
    assert sum(earned[-3:]) > 5 * sum(earned[:3])
    assert max(gaps[: 1 if staleness else None]) < 1e-3  # sampler and trainer agree on what was sampled, every time
    assert not staleness or min(gaps[1:]) > 1e-3
