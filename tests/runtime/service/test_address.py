"""Where a service listens, and how it is found: where it was before, and not beyond this machine unless that is said."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.coordinator.run_plan import RunPlan
from runtime.machines.own_ray import ask_for_token
from runtime.service.address import (
    HTTP,
    SERVICE,
    Listen,
    Listening,
    RayAddress,
    ServiceAddress,
    announce,
    check_run,
    claim,
    continuing,
    find,
    folder_of,
    let_in,
    listening_of,
    parse_listen,
    remember,
    withdraw,
)
from runtime.service.client import NoService, connected
from runtime.service.http import server
from runtime.service.http.server import bind
from runtime.service.plan import ServiceOptions
from runtime.service.serve_here import serve_here
from runtime.service.service import RunService
from runtime.service.tokens import Holder, Right, Tokens
from tests.runtime.other_user import CANNOT, listening
from tests.runtime.pretend import attached_plan

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


def test_host_and_port_are_read_as_written() -> None:
    assert parse_listen(None, False) is None
    assert parse_listen("127.0.0.1:8800", False) == Listen("127.0.0.1", 8800)
    assert parse_listen("[::1]:0", False) == Listen("::1", 0)
    assert str(Listen("::1", 1)) == "[::1]:1" and str(Listen("localhost", 1)) == "localhost:1"


@pytest.mark.parametrize("text", ["", "8800", "127.0.0.1", "127.0.0.1:", ":8800", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--http .*: must be HOST:PORT, as 127\.0\.0\.1:8800$"):
        parse_listen(text, False)


def test_beyond_loopback_nothing_listens_unless_that_is_said() -> None:
    for text in ("0.0.0.0:0", "[::]:0", "192.0.2.1:80"):
        with pytest.raises(InputError, match="--listen-beyond-loopback allows it"):
            parse_listen(text, False)
    assert parse_listen("0.0.0.0:0", True) == Listen("0.0.0.0", 0, True)
    with pytest.raises(InputError, match=r"^--http no-such-host\.invalid:1: "):
        parse_listen("no-such-host.invalid:1", True)


def test_a_service_listens_with_the_same_again(tmp_path: Path) -> None:
    first = listening_of(tmp_path, None, False)
    assert first.where == Listen() and Tokens(tmp_path).holder(first.token) == Holder("", Right.OPERATE)
    remember(tmp_path, replace(first, where=Listen(port=8801)))
    assert (tmp_path / HTTP).stat().st_mode & 0o777 == 0o600
    assert listening_of(tmp_path, None, False) == Listening(Listen(port=8801), first.token)
    assert listening_of(tmp_path, Listen(port=9), False) == Listening(Listen(port=9), first.token)
    Tokens(tmp_path).revoke(Tokens(tmp_path).list()[0].id)  # a token that was revoked does not come back
    second = listening_of(tmp_path, None, False)
    assert second.where.port == 8801 and second.token != first.token
    (tmp_path / HTTP).write_text("{")
    assert listening_of(tmp_path, None, False).where == Listen()


def test_leave_to_listen_beyond_loopback_does_not_outlive_the_flag(tmp_path: Path) -> None:
    remember(tmp_path, Listening(Listen("0.0.0.0", 8801, True), "x"))
    with pytest.raises(InputError, match="--listen-beyond-loopback allows it"):
        listening_of(tmp_path, None, False).where.resolve()
    assert listening_of(tmp_path, None, True).where == Listen("0.0.0.0", 8801, True)


def test_a_port_that_somebody_has_is_waited_for_and_then_refused() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            where = Listen(port=other.getsockname()[1])
            with pytest.raises(InputError, match=rf"^--http {where}: Address already in use$"):
                await bind(where)
            waiting = asyncio.ensure_future(bind(where, 30.0))
            await asyncio.sleep(0.01)
            assert not waiting.done()
        with await waiting as taken:
            assert taken.getsockname()[1] == where.port
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    asyncio.run(main())


def test_a_resumed_service_says_at_once_that_its_port_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_AGAIN_S", 1e6)  # waiting would never end
    plan = attached_plan(tmp_path)
    began = asyncio.run(_began(plan))
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = Listen(port=other.getsockname()[1])
        remember(tmp_path, Listening(where, "x"))
        with pytest.raises(InputError, match=rf"^--http {where}: Address already in use$"):
            serve_here(tmp_path, ServiceOptions(), None, print)
        serve_loop = pytest.importorskip("runtime.service.serve_loop", reason="no Ray")
        lines: list[str] = []
        assert serve_loop.waits_for_port(where, lines.append)  # a coordinator that dies may have it, of the same user
        assert len(lines) == 1 and lines[0].startswith(f"{where} is in use, perhaps by the coordinator before this one")
        monkeypatch.setattr(serve_loop, "listeners", lambda port: {os.geteuid() + 1})
        with pytest.raises(InputError, match=rf"^--http {where}: Address already in use$"):
            serve_loop.waits_for_port(where, lines.append)
    assert began == "stopped"


async def _began(plan: RunPlan) -> str:
    """Begin a service and stop it."""
    service = RunService(plan)
    await service.serve(None)
    await service.stop()
    return await service.ended()


def test_what_continues_a_folder_is_a_run_or_a_service_of_its_kind(tmp_path: Path) -> None:
    assert continuing(tmp_path) == f"rollmux run --resume {tmp_path}"
    check_run(tmp_path)
    first = listening_of(tmp_path, None, False)
    let_in(tmp_path, first, "http://127.0.0.1:8801", 8801, None)
    assert continuing(tmp_path) == f"rollmux serve {tmp_path} --no-ray"
    with pytest.raises(
        InputError, match=rf"^--resume {tmp_path}: holds a service, and no run; `rollmux serve {tmp_path} --no-ray`"
    ):
        check_run(tmp_path, "--resume ")
    let_in(tmp_path, first, "http://127.0.0.1:8801", 8801, RayAddress("127.0.0.1:1", "a"))
    assert continuing(tmp_path) == f"rollmux serve {tmp_path}"
    (tmp_path / HTTP).write_text("{")
    assert continuing(tmp_path) == f"rollmux serve {tmp_path}"


@pytest.mark.parametrize("has_ray", [True, False])
def test_a_folder_is_a_services_before_that_has_listened(tmp_path: Path, has_ray: bool) -> None:
    claim(tmp_path, has_ray)
    assert continuing(tmp_path) == f"rollmux serve {tmp_path}{'' if has_ray else ' --no-ray'}"
    assert listening_of(tmp_path, None, False).where == Listen()  # not a place that was asked for and is perhaps taken
    let_in(tmp_path, listening_of(tmp_path, None, False), "http://127.0.0.1:8801", 8801, None)
    claim(tmp_path, has_ray=True)
    assert continuing(tmp_path) == f"rollmux serve {tmp_path} --no-ray"


def test_a_folder_in_a_command_is_one_word_for_a_shell(tmp_path: Path) -> None:
    assert shlex.split(continuing(tmp_path / "my run")) == ["rollmux", "run", "--resume", str(tmp_path / "my run")]
    with pytest.raises(NoService) as error, connected(tmp_path / "it's"):
        pass
    assert shlex.split(str(error.value).split("`")[1]) == ["rollmux", "serve", str(tmp_path / "it's")]
