"""How a service is found."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.execution.own_ray import ask_for_token
from runtime.service.address import SERVICE, RayAddress, ServiceAddress, announce, find, folder_of, withdraw
from tests.runtime.other_user import CANNOT, listening

WHERE = RayAddress("127.0.0.1:20001", "service-1", token="/somewhere/token", ray="/tmp/rollmux-ray-x", device=1, inode=2)


def test_a_service_is_found_by_its_file_which_only_its_owner_may_read(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    announce(tmp_path, ServiceAddress("http://127.0.0.1:8800", "secret", WHERE))
    ray = replace(WHERE, token=str(tmp_path / "token"))  # a token of a Ray is nowhere else
    assert find(tmp_path) == ServiceAddress("http://127.0.0.1:8800", "secret", ray)
    assert json.loads((tmp_path / SERVICE).read_text()).items() >= {"url": "http://127.0.0.1:8800", "token": "secret"}.items()
    assert (tmp_path / SERVICE).stat().st_mode & 0o777 == 0o600
    withdraw(tmp_path)
    assert find(tmp_path) is None


def test_a_service_that_an_older_version_started_is_found_without_a_url(tmp_path: Path) -> None:
    (tmp_path / SERVICE).write_text(json.dumps(asdict(WHERE)))
    assert find(tmp_path) == ServiceAddress("", "", replace(WHERE, token=str(tmp_path / "token")))


def test_a_file_that_says_nothing_is_refused(tmp_path: Path) -> None:
    for text in ("{}", "", "[", "[" * 100_000, '{"url": 3}'):
        (tmp_path / SERVICE).write_text(text)
        with pytest.raises(InputError, match=r"service\.json: cannot be read"):
            find(tmp_path)


def test_a_command_means_the_folder_given_or_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLMUX_SERVICE", raising=False)
    assert folder_of(None) == Path("rollmux-service")
    monkeypatch.setenv("ROLLMUX_SERVICE", str(tmp_path))
    assert folder_of(None) == tmp_path and folder_of(Path("other")) == Path("other")


def test_nobody_answers_at_a_port_where_nobody_listens() -> None:
    assert not RayAddress("127.0.0.1:1", "x").answers() and not RayAddress("nonsense", "x").answers()
    assert not RayAddress("127.0.0.1:99999999999999", "x").answers()
    for url in ("", "http://127.0.0.1:1", "http://127.0.0.1", "nonsense", "http://127.0.0.1:99999999"):
        assert not ServiceAddress(url, "", None).answers(), url


@pytest.mark.skipif(bool(CANNOT), reason=CANNOT)
def test_another_user_who_has_taken_the_port_of_a_service_is_none() -> None:
    with listening() as port, socket.create_server(("127.0.0.1", 0)) as server:
        theirs, ours = (replace(WHERE, address=f"127.0.0.1:{k}") for k in (port, server.getsockname()[1]))
        assert ours.answers() and not theirs.answers()
        assert ServiceAddress(f"http://{ours.address}", "", None).answers()
        assert not ServiceAddress(f"http://{theirs.address}", "", None).answers()
        assert replace(theirs, ray=None).answers()  # whose a cluster is that was joined, nobody knows


def test_a_token_of_the_users_own_does_not_come_before_that_of_a_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"RAY_AUTH_TOKEN": "mine", "RAY_AUTH_TOKEN_PATH": "/mine", "RAY_AUTH_MODE": "disabled"}.items():
        monkeypatch.setenv(name, value)
    ask_for_token(tmp_path / "token")
    assert {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH") and value} == {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
    }
