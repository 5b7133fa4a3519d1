"""One rank of training, in this process."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from rollmux_segment import Footprint

from runtime.engines.interface import Response
from runtime.grpo import training_worker
from runtime.grpo.messages import ShareSamples
from runtime.grpo.state import read_state, write_shards
from runtime.grpo.training_worker import TrainingWorker
from runtime.jobs.grpo_spec import ModelSpec
from runtime.machine import Node
from runtime.memory import resident_gb
from tests.runtime.grpo.test_rewards import PATIENCE_S, job
from tests.runtime.sockets import listening
from tests.runtime.training.world import state_of

PAGE = os.sysconf("SC_PAGE_SIZE")
NODE = Node("training-0", "training", "m", (0,), (), 4.0, "1 core")


def test_ranks_meet_at_a_port_that_is_taken_from_the_moment_it_is_named(tmp_path: Path) -> None:
    worker = TrainingWorker(job(tmp_path), 0, 2, NODE)
    place = urlsplit(worker.rendezvous())
    assert place.scheme == "tcp" and place.hostname is not None and place.port is not None
    socket.create_connection((place.hostname, place.port)).close()  # nobody else can have it before the ranks come
    assert [host for host, port in listening([os.getpid()]) if port == place.port] == [place.hostname]


def test_a_rank_that_is_alone_meets_nobody(tmp_path: Path) -> None:
    assert TrainingWorker(job(tmp_path), 0, 1, NODE).rendezvous() is None


def test_new_weights_are_kept_in_the_same_memory_every_time_and_counted_once(tmp_path: Path) -> None:
    worker = TrainingWorker(job(tmp_path), 0, 1, NODE)
    worker.open(None, None)
    try:
        before = worker.offload()[0].host
        for whole in (False, True):
            worker.restore(False, False)
            kept = worker.keep_weights(whole)
            footprint = worker.offload()[0]
            assert kept.ranges == ((0, kept.layout.nbytes),)
            assert 0 <= footprint.host - before - kept.layout.nbytes <= 2 * PAGE and not footprint.mapped
    finally:
        worker.close()


def test_a_profile_measures_the_host_memory_that_later_phases_have_and_learns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the weights would be a tenth of it."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    large = ModelSpec(name="tiny", hidden_size=512, layers=4)
    worker = TrainingWorker(job(tmp_path).model_copy(update={"model": large}), 0, 1, NODE)
    worker.open(None, None)
    trainer = worker._trainer  # noqa: SLF001 (its weights are compared)
    tokens = tuple(range(8))
    response = Response(0, tokens, (-1.0,) * 8, True, 0)
    sampled = [ShareSamples(0, (tokens,) * 8, (response,) * 8, (1.0, 0.0) * 4)]

    def digests() -> object:
        tensors, counts = state_of(trainer)
        return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}, counts

    def train(keep: bool, back: bool) -> float:
        worker.restore(keep, back)
        worker.update(sampled)
        worker.keep_weights(False)
        footprint = Footprint()
        for _ in range(2):  # as a profile does, which measures a warm switch
            worker.restore(keep, False)
            footprint = worker.offload()[0]
        return resident_gb() + (footprint.host - footprint.mapped) / 1e9

    try:
        worker.offload()
        worker.restore(True, False)
        before = digests()
        planned_gb = train(True, False)
        worker.restore(True, True)
        assert digests() == before
        assert train(False, False) == pytest.approx(planned_gb, rel=0.02)
    finally:
        worker.close()


def test_a_checkpoint_is_of_the_state_that_was_there_when_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next training has begun, and changed every weight, before the first byte is written."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    worker = TrainingWorker(job(tmp_path), 0, 1, NODE)
    worker.open(None, None)
    trainer = worker._trainer  # noqa: SLF001 (weights are changed here, and not by an update)
    before, info = state_of(trainer)
    worker.offload()
    go = Event()

    def later(*arguments: Any) -> Any:
        assert go.wait(PATIENCE_S)
        return write_shards(*arguments)

    monkeypatch.setattr(training_worker, "write_shards", later)
    worker.begin_writing(str(tmp_path))
    worker.restore(False, False)
    with torch.no_grad():
        for parameter in trainer._names.values():  # noqa: SLF001
            parameter.add_(1.0)
    worker.offload()
    assert worker.written() is None
    go.set()
    worker._writer.shutdown()  # noqa: SLF001
    files = worker.written()
    path = tmp_path / "rank-0.safetensors"
    assert files == {path.name: (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())}
    written, counts = read_state(tmp_path)
    assert counts == {**info, "ranks": 1} and written.keys() == before.keys()
    assert all(torch.equal(written[name][:], before[name]) for name in before)
    trainer.close()
