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

NODE = Node("training-0", "training", "m", (0,), (), 4.0, "1 core")


def test_ranks_meet_at_a_port_that_is_taken_from_the_moment_it_is_named(tmp_path: Path) -> None:
    worker = TrainingWorker(job(tmp_path), 0, 2, NODE)
    place = urlsplit(worker.meeting())
    assert place.scheme == "tcp" and place.hostname is not None and place.port is not None
    socket.create_connection((place.hostname, place.port)).close()  # nobody else can have it before the ranks come
    assert [host for host, port in listening([os.getpid()]) if port == place.port] == [place.hostname]


def test_a_rank_that_is_alone_meets_nobody(tmp_path: Path) -> None:
    assert TrainingWorker(job(tmp_path), 0, 1, NODE).meeting() is None
