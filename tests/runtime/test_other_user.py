"""What another user of the machine can do with a run: nothing. What it may not reach is tried by a process of that user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rollmux_segment import Segment

from runtime.machines.own_ray import started_processes
from runtime.own_folder import OwnFolder
from runtime.run.ray_session import ray_session
from tests.runtime.other_user import CANNOT, below, opened_by, reach
from tests.runtime.sockets import Address, answer_without_token, listening

pytestmark = pytest.mark.skipif(bool(CANNOT), reason=CANNOT)


@pytest.fixture(scope="module")
def other_ports() -> list[Address]:
    """Where this process listens already: what other tests have left is none of Ray's."""
    return listening([os.getpid()])


@pytest.fixture(scope="module")
def home(other_ports: list[Address]) -> Iterator[OwnFolder]:
    """The folder of the Ray of a run."""
    with ray_session(None, {"rollout": 1, "training": 1}):
        found = Path(os.environ["ROLLMUX_RAY"]).stat()
        yield OwnFolder(os.environ["ROLLMUX_RAY"], found.st_dev, found.st_ino)


def test_it_finds_what_it_may_reach(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name, mode in {"open": 0o666, "read": 0o644, "closed": 0o600}.items():
            (Path(folder) / name).touch()
            (Path(folder) / name).chmod(mode)
        assert {Path(path).name: way for path, way in reach(below(Path(folder))).items()} == {
            Path(folder).name: "read",
            "open": "read write",
            "read": "read",
        }


def test_it_reaches_nothing_of_a_ray_of_ours(home: OwnFolder) -> None:
    paths = below(Path(home.path))
    assert any(path.is_socket() for path in paths)
    assert reach(paths) == {}


def test_it_reaches_nothing_that_our_processes_have_open(home: OwnFolder) -> None:
    segment = Segment(1 << 20)
    try:
        paths = opened_by([os.getpid(), *started_processes(home)])
        assert Path(segment.path) in paths
        assert reach(paths) == {}
    finally:
        segment.close()


def test_whoever_has_no_token_is_sent_away(home: OwnFolder, other_ports: list[Address]) -> None:
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert token.parent == Path(home.path) and token.stat().st_mode & 0o777 == 0o600
    addresses = [address for address in listening(started_processes(home)) if address not in other_ports]
    answers = {address: answer_without_token(address) for address in addresses}
    assert {*answers.values()} == {"UNAUTHENTICATED", "401"}
