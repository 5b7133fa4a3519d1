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

from runtime.grpo import training_worker
from runtime.grpo.state import read_state, write_shards
from runtime.grpo.training_worker import TrainingWorker
from runtime.machine import Node
from tests.runtime.grpo.test_rewards import PATIENCE_S, job
from tests.runtime.sockets import listening
from tests.runtime.training.world import state_of

PAGE = os.sysconf("SC_PAGE_SIZE")
NODE = Node("training-0", "training", "m", (0,), (), 4.0, "1 core")


def test_ranks_meet_at_a_port_that_is_taken_from_the_moment_it_is_named(tmp_path: Path) -> None:
    worker = TrainingWorker(job(tmp_path), 0, 2, NODE)
    place = urlsplit(worker.meeting())
    assert place.scheme == "tcp" and place.hostname is not None and place.port is not None
    socket.create_connection((place.hostname, place.port)).close()  # nobody else can have it before the ranks come
    assert [host for host, port in listening([os.getpid()]) if port == place.port] == [place.hostname]


def test_a_rank_that_is_alone_meets_nobody(tmp_path: Path) -> None:
    assert TrainingWorker(job(tmp_path), 0, 1, NODE).meeting() is None


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
