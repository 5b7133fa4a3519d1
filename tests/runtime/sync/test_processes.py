"""A rank in a process of its own: its memory is read where it can be, and its death is said in one line."""

from __future__ import annotations

import hashlib
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime import machine
from runtime.residency.staging import WeightStage
from runtime.sync import wire
from runtime.sync.streams import Inbox
from tests.runtime.sync.rank import VERSION, transfer_to

ROOT = Path(__file__).parents[3]
NBYTES, PIECES = 5_000_000, 5
CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture(autouse=True)
def _true_machine(monkeypatch: pytest.MonkeyPatch, _machines: None) -> None:
    monkeypatch.setattr(wire, "memory_id", machine.memory_id)


class Sync:
    """One worker here, and a rank elsewhere."""

    def __init__(self, pieces: int, command: Sequence[str] = ()) -> None:
        self.inbox, self.stage = Inbox("127.0.0.1"), WeightStage()
        self.transfer = transfer_to(self.inbox.address[1], secrets.token_bytes(32), NBYTES)
        self._thread = ThreadPoolExecutor(1)
        self.receiving = self._thread.submit(self.inbox.receive, 0, self.transfer, self.stage)
        arguments = [self.inbox.address[1], self.transfer.secret.hex(), NBYTES, pieces]
        program = [*command, sys.executable, "-m", "tests.runtime.sync.rank", *map(str, arguments)]
        self.rank = subprocess.Popen(program, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.rank.stdout is not None
        is_shared, self.digest = self.rank.stdout.readline().split()
        self.shared = is_shared == "True"

    def close(self) -> None:
        self.rank.kill()
        self.rank.communicate()
        self._thread.shutdown()
        self.inbox.close()
        self.stage.close()


@pytest.mark.parametrize("command", [(), CONTAINER])
def test_the_same_bytes_from_memory_and_over_the_connection(command: Sequence[str]) -> None:
    if command and subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of process ids here")
    sync = Sync(PIECES, command)
    try:
        sync.receiving.result(60)
        assert sync.shared == (not command)  # in a container's namespace processes have other numbers
        assert hashlib.sha256(sync.stage.weights()["weights"].numpy().tobytes()).hexdigest() == sync.digest
    finally:
        sync.close()


def test_a_rank_that_is_killed_while_its_memory_is_read_is_one_line() -> None:
    sync = Sync(PIECES - 2)
    try:
        assert sync.shared
        sync.rank.send_signal(signal.SIGKILL)
        problem = str(sync.receiving.exception(60))
        assert problem == (
            f"weights of version {VERSION}, stream 0 of 1, broke at rollout worker 0: the connection was closed before its end"
        )
        assert not sync.stage.complete
    finally:
        sync.close()


def test_memory_whose_owner_has_hung_up_counts_for_nothing() -> None:
    sync = Sync(0)
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(RuntimeError, match="closed before its end"):
            theirs.sendall(b"all of its tags")  # and only then it dies
            theirs.close()
            wire.copy(sync.stage.memory(), 0, memoryview(bytearray(8)), ours)
    finally:
        sync.close()
