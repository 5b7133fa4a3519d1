"""The peak that is predicted of an update is the peak that torch's own count of its memory shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch.profiler import ProfilerActivity, profile

from runtime.engines.interface import Response
from runtime.engines.memory import ModelSize
from runtime.engines.model_files import read_model_files
from runtime.jobs.grpo_spec import Algorithm, ModelSpec
from runtime.jobs.models import model_directory, tiny_config
from runtime.training import group, memory
from runtime.training.batch import make_batch
from runtime.training.memory import TrainingPeak, size_of, tiny_size, training_peak
from runtime.training.trainer import Trainer
from tests.runtime.qwen import small_qwen

FACTOR = 1.2  # between predicted and measured, either way
REAL_VOCABULARY = 151_936


def _settings(responses: int, length: int, **more: float) -> Algorithm:
    return Algorithm(
        prompts_per_iteration=responses // 2,
        group_size=2,
        max_prompt_tokens=8,
        max_tokens=length - 8,
        minibatches=1,
        learning_rate=1e-3,
    ).model_copy(update=more)


def _measured(model: Path, settings: Algorithm) -> int:
    """Bytes that a second update has beside weights and Adam's moments, at most, as torch counts what it takes and gives back."""
    trainer = Trainer(model, settings)
    random, vocabulary = np.random.default_rng(0), read_model_files(model).vocabulary
    responses = settings.prompts_per_iteration * settings.group_size
    prompts = random.integers(0, vocabulary, (responses, settings.max_prompt_tokens)).tolist()
    sampled = [
        Response(k, tuple(random.integers(0, vocabulary, settings.max_tokens).tolist()), (-5.0,) * settings.max_tokens, True, 0)
        for k in range(responses)
    ]
    batch = make_batch(prompts, sampled, random.random(responses).tolist(), settings.group_size)
    small = make_batch(prompts[:2], [Response(k, (1,), (-5.0,), True, 0) for k in range(2)], [0.0, 1.0], 2)
    try:
        trainer.update(small)  # makes Adam's moments
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            trainer.update(batch)
    finally:
        trainer.close()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    return int(np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).max())


def _model(folder: Path, vocabulary: int, hidden: int) -> tuple[ModelSize, Path]:
    small_qwen(0, vocabulary, hidden, hidden // 32, tied=True, positions=4096).save_pretrained(folder)
    return size_of(read_model_files(folder), json.loads((folder / "config.json").read_text())), folder


def _beyond(peak: TrainingPeak, size: ModelSize) -> int:
    return peak.device - 12 * size.parameters


@pytest.mark.parametrize(
    ("vocabulary", "hidden", "settings", "recomputed"),
    [
        pytest.param(REAL_VOCABULARY, 64, _settings(2, 64), False, id="log-probs with the real vocabulary"),
        pytest.param(64, 128, _settings(8, 256), False, id="activations that are kept"),
        pytest.param(64, 128, _settings(8, 256), True, id="activations that are computed again"),
        pytest.param(20_000, 128, _settings(4, 16, micro_batch_tokens=16), False, id="gradients of several passes"),
    ],
)
def test_a_peak_is_what_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: int, hidden: int, settings: Algorithm, recomputed: bool
) -> None:
    for module in (group, memory):
        monkeypatch.setattr(module, "LARGE", 0 if recomputed else 1 << 40)
    size, folder = _model(tmp_path, vocabulary, hidden)
    predicted = _beyond(training_peak(size, settings, 1, on_gpu=False), size)
    measured = _measured(folder, settings)
    assert predicted / FACTOR < measured < predicted * FACTOR


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    model = ModelSpec(hidden_size=64, layers=2)
    folder = model_directory(model, 0)
    assert tiny_size(tiny_config(model)) == size_of(read_model_files(folder), json.loads((folder / "config.json").read_text()))
    size, _ = _model(tmp_path, 100, 64)
    assert size.parameters == size.layers * size.layer + size.outside and size.layers == 2
