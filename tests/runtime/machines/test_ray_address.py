"""A dead `--address` is one line, at once."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.machines.own_ray import answers, check_address


def dead_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_who_listens_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert answers(f"127.0.0.1:{server.getsockname()[1]}")
        check_address(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999999999", "a\0b:1"])
def test_what_is_no_address_is_one_line(address: str) -> None:
    with pytest.raises(InputError, match="nobody answers") as refused:
        check_address(address)
    assert "\n" not in str(refused.value)


def test_a_ray_that_has_gone_is_one_line_also_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = f"127.0.0.1:{dead_port()}"
    with pytest.raises(InputError, match=rf"^--address {dead}: nobody answers; is it HOST:PORT of a Ray that runs\?$"):
        check_address(dead)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    check_address("auto")  # Ray says itself that there is none
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(dead)
    with pytest.raises(InputError, match=f"^--address auto: nobody answers at {dead}"):
        check_address("auto")
