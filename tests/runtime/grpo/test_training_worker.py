"""One rank of training, in this process."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from runtime.facts import Node
from runtime.grpo.training_worker import TrainingWorker
from tests.runtime.grpo.test_rewards import job
from tests.runtime.sockets import listening

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
