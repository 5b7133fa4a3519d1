"""An engine that starts where others sleep takes what they leave."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import rollmux_offload
import torch

from rollmux_env.errors import InputError
from runtime.engines.memory import USUAL, cache_wanted, device_share
from runtime.engines.model_files import ModelFiles
from runtime.engines.vllm_engine import VllmEngine
from runtime.gpus import is_out_of_memory

GB = 10**9


def test_an_empty_device_gives_the_usual_share_and_a_full_one_what_is_free() -> None:
    assert device_share(79 * GB, 80 * GB, None) == USUAL
    assert device_share(79 * GB, 80 * GB, 0.9) == 0.9
    assert device_share(60 * GB, 80 * GB, None) == pytest.approx(0.74)


@pytest.mark.parametrize(("free_gb", "wanted", "words"), [(60, 0.75, "0.75 of the GPU is asked for"), (3, None, "needs a part")])
def test_what_is_not_free_is_refused_in_one_line(free_gb: int, wanted: float | None, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        device_share(free_gb * GB, 80 * GB, wanted)
    assert f"of 80.0 GB {free_gb}.0 GB are free" in str(refused.value) and "\n" not in str(refused.value)


def test_the_cache_is_as_large_as_a_job_needs_and_never_more_than_it_may_take() -> None:
    """128 responses of 812 tokens of a model of 1.5 billion parameters, 28 layers of two heads of 128."""
    parameters, cached, tokens = 1_543_714_304, 2 * 28 * 2 * 128, 128 * 816
    wanted = cache_wanted(parameters, cached, tokens, 1, 0.8 * 80 * GB)
    assert wanted == 2 * cached * tokens and 2.9 * GB < wanted < 3.1 * GB
    assert cache_wanted(parameters, cached, tokens, 1, 7 * GB) is None  # vLLM measures what fits
    assert cache_wanted(parameters, cached, 100 * tokens, 1, 0.8 * 80 * GB) is None


@pytest.mark.parametrize(("devices", "shares"), [(1, 1), (2, 2), (4, 2)])
def test_each_gpu_of_an_engine_has_the_cache_of_its_heads(devices: int, shares: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the model above: four GPUs have each of the two heads twice."""
    cached, tokens = 2 * 28 * 2 * 128, 128 * 816
    shapes = {"embed": (1000, 1_543_714)}
    engine = object.__new__(VllmEngine)
    engine._files, engine._devices = ModelFiles(Path(), shapes, "embed", True, frozenset(), 4096, cached, 128, 2), devices
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (79 * GB, 80 * GB))
    assert engine._share(None, tokens)["kv_cache_memory_bytes"] == 2 * cached * tokens // shares


def test_what_a_stranger_frees_of_a_gpu_leaves_an_engine_with_no_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is none of the run's ended while an engine fell asleep: its job failed, at a footprint below zero."""
    engine = object.__new__(VllmEngine)
    engine._gpu, engine._devices, engine._device_bytes = True, 1, 5 * GB
    free = iter([70 * GB, 77 * GB])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (next(free), 80 * GB))
    with engine._count_memory():
        pass
    assert engine._device_bytes == 0


@pytest.mark.parametrize("frees_s", [10, 29, 31])
def test_an_engine_wakes_when_a_process_that_ends_has_freed_its_memory(monkeypatch: pytest.MonkeyPatch, frees_s: float) -> None:
    """On a device and a clock of the test's own."""
    now, calls = [0.0], list[str]()
    engine = object.__new__(VllmEngine)
    engine._gpu, engine._devices, engine._device_bytes, engine._level = True, 1, 0, 1
    engine._given_back, engine._weight_bytes, engine._resident_gb = 40 * GB, 3 * GB, 0.0
    wake = lambda tags: calls.extend(tags)  # noqa: E731
    engine._llm = SimpleNamespace(wake_up=wake, collective_rpc=calls.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: ((50 if now[0] >= frees_s else 20) * GB, 80 * GB))
    monkeypatch.setattr(rollmux_offload, "monotonic", lambda: now[0])
    monkeypatch.setattr(rollmux_offload, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    if frees_s > 30:
        with pytest.raises(torch.OutOfMemoryError, match=r"an engine that wakes needs 40\.0 GB of the GPU, 20\.0 GB are") as error:
            engine.restore()
        assert is_out_of_memory(str(error.value))
        assert engine._level == 1 and not calls
    else:
        engine.restore()
        assert now[0] == frees_s and calls == ["weights", "kv_cache", "release_host_cache"]
