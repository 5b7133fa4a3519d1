"""How a service is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.service.address import SERVICE, ServiceAddress, announce, find, folder_of, withdraw

WHERE = ServiceAddress("127.0.0.1:20001", "service-1", token="/somewhere/token", ray="/tmp/rollmux-ray-x", device=1, inode=2)


def test_a_service_is_found_by_its_file_which_only_its_owner_may_read(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    announce(tmp_path, WHERE)
    assert find(tmp_path) == replace(WHERE, token=str(tmp_path / "token"))  # a token is nowhere else
    assert (tmp_path / SERVICE).stat().st_mode & 0o777 == 0o600
    withdraw(tmp_path)
    assert find(tmp_path) is None


def test_a_file_that_says_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / SERVICE).write_text("{}")
    with pytest.raises(InputError, match=r"service\.json: cannot be read"):
        find(tmp_path)


def test_a_command_means_the_folder_given_or_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLMUX_SERVICE", raising=False)
    assert folder_of(None) == Path("rollmux-service")
    monkeypatch.setenv("ROLLMUX_SERVICE", str(tmp_path))
    assert folder_of(None) == tmp_path and folder_of(Path("other")) == Path("other")


def test_nobody_answers_at_a_port_where_nobody_listens() -> None:
    assert not ServiceAddress("127.0.0.1:1", "x").answers() and not ServiceAddress("nonsense", "x").answers()
    assert not ServiceAddress("127.0.0.1:99999999999999", "x").answers()
