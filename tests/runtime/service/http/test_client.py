"""What commands ask a service over HTTP, and what they say when it refuses."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from rollmux_env.locks import take_lock
from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import JobSpec
from runtime.journal.write import DRIVER_LOCK, SERVES
from runtime.output import LOGS
from runtime.service.address import ServiceAddress, announce, withdraw
from runtime.service.client import NoService, connected
from runtime.service.tokens import Right
from tests.conftest import Command
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_jobs import JOB


def specs(*names: str, **more: object) -> tuple[JobSpec, ...]:
    jobs = [{"id": name, **JOB, "arrival_s": 1e6, **more} for name in names]
    return parse_jobs({"version": 1, "jobs": jobs}, "test", Path("/")).jobs


@pytest.fixture
def folder(served: Served) -> Path:
    announce(served.folder, ServiceAddress(served.server.url, served.token, None))
    return served.folder


def test_jobs_are_submitted_looked_at_and_cancelled(folder: Path) -> None:
    with connected(folder) as client:
        client.submit(specs("a", "b"))
        assert {job["id"] for job in client.status()["jobs"]} == {"a", "b"}
        client.cancel("a")
        assert (client.job("a")["state"], client.job("b")["state"]) == ("cancelled", "waiting")
        with pytest.raises(InputError, match=r"^job a: has ended already: cancelled$"):
            client.cancel("a")
        with pytest.raises(InputError, match=r"^job x y\?: this service has no such job$"):
            client.job("x y?")


def test_more_jobs_than_fit_into_a_request_are_submitted_in_parts(folder: Path) -> None:
    many = specs(*(f"m{k}" for k in range(24)), options={"text": "x" * 60_000})
    with connected(folder) as client:
        client.submit(many)
        assert {spec.id for spec in many} <= {job["id"] for job in client.status()["jobs"]}
        again = (*specs(*(f"n{k}" for k in range(17)), options={"text": "x" * 60_000}), many[0])
        with pytest.raises(
            InputError, match=r"^job m0: this service has had a job of that name; .*; the 16 jobs before are submitted$"
        ):
            client.submit(again)


def as_user(served: Served, right: Right, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """Name the service and a user's token in the environment, as that user has them."""
    monkeypatch.delenv("ROLLMUX_SERVICE", raising=False)
    for name, value in {"ROLLMUX_URL": served.server.url, "ROLLMUX_TOKEN": served.tokens.make("ann", right), **more}.items():
        monkeypatch.setenv(name, value)


def test_commands_ask_the_service_of_the_environment_with_the_users_own_token(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    phase = {"worst_case_s": 1, "host_memory_gb": 0.1}
    entry = {"id": "of-ann", "attach": True, "iterations": 3, "slo": 1000, "rollout": phase, "training": phase, "arrival_s": 1e6}
    file.write_text(json.dumps({"version": 1, "jobs": [entry]}))
    as_user(served, Right.ATTACH, monkeypatch)
    assert command("submit", str(file)) == (0, "submitted: of-ann\n", "")
    assert "of-ann" in command("status")[1] and "of-ann" in command("status", "--user", "ann", "--state", "waiting,running")[1]
    assert "of-ann" not in command("status", "--user", "bob")[1]
    for states in ("idle", "", "waiting,"):
        assert "must be one of waiting, parked, profiling" in command("status", "--state", states)[2]
    for refused in (("drain", "rollout-0"), ("undrain", "rollout-0")):
        assert command(*refused) == (2, "", "rollmux: this token has the right to attach, not to operate\n")
    as_user(served, Right.LOOK, monkeypatch)
    assert command("cancel", "of-ann") == (2, "", "rollmux: this token has the right to look, not to attach\n")
    as_user(served, Right.ATTACH, monkeypatch)
    assert command("cancel", "of-ann") == (0, "cancelled: of-ann\n", "")


def test_a_folder_that_is_given_counts_alone(
    folder: Path, served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(served, Right.LOOK, monkeypatch)
    assert command("undrain", "rollout-0")[2] == "rollmux: this token has the right to look, not to operate\n"
    assert "is not drained" in command("undrain", "rollout-0", "--at", str(folder))[2]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ROLLMUX_URL": "http://x"}, "ROLLMUX_URL is set, and ROLLMUX_TOKEN is not"),
        ({"ROLLMUX_TOKEN": "x"}, "ROLLMUX_TOKEN is set, and ROLLMUX_URL is not"),
        (
            {"ROLLMUX_URL": "http://x", "ROLLMUX_TOKEN": "x", "ROLLMUX_SERVICE": "there"},
            "ROLLMUX_URL and ROLLMUX_SERVICE (there) both name a service: unset one, or give --at DIR",
        ),
        ({"ROLLMUX_URL": "x:1", "ROLLMUX_TOKEN": "x"}, "ROLLMUX_URL: must be http://HOST:PORT or https://HOST:PORT, not 'x:1'"),
        ({"ROLLMUX_URL": "http://127.0.0.1:1", "ROLLMUX_TOKEN": "x"}, "ROLLMUX_URL http://127.0.0.1:1: 127.0.0.1: "),
    ],
)
def test_an_environment_that_names_no_service_or_two_is_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], problem: str
) -> None:
    for name in ("ROLLMUX_URL", "ROLLMUX_TOKEN", "ROLLMUX_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for words in (("status",), ("cancel", "a"), ("logs", "a"), ("logs", "a", "--follow"), ("drain", "rollout-0")):
        status, out, err = command(*words)
        assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith(f"rollmux: {problem}"), err


def test_logs_come_over_http_whole_and_are_followed(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    as_user(served, Right.LOOK, monkeypatch)
    served.ask("POST", "/v1/jobs", {"id": "logged", **JOB})
    served.until("/v1/jobs/logged", lambda job: job["state"] == "done")
    assert "job logged: no process of it has begun" in command("logs", "logged")[2]
    home = served.folder / LOGS / "logged"
    home.mkdir(parents=True)
    iteration = "2026-11-24 04:00:00  iteration 1 of 3: 1.00 s, reward 0.5, loss 2, response_tokens 12"
    (home / "controller.log").write_text(f"{iteration}, lr 1\nlast")
    (home / "rollout-0.Echo.log").write_text("x" * (1 << 20) + "\nends\n")
    lines = ["controller | last", "rollout-0.Echo | " + "x" * (1 << 20), "rollout-0.Echo | ends"]
    for more in ((), ("--follow",)):
        status, out, err = command("logs", "logged", *more)
        assert (status, err) == (0, "") and sorted(out.splitlines()) == sorted([f"controller | {iteration}", *lines])
    assert f"controller | {iteration}, lr 1" in command("logs", "logged", "--all")[1].splitlines()


def test_what_is_no_file_is_no_log_over_http(served: Served) -> None:
    """A job may have put it there: who opens a pipe waits for somebody to write."""
    served.ask("POST", "/v1/jobs", {"id": "piped", **JOB})
    home = served.folder / LOGS / "piped"
    home.mkdir(parents=True)
    os.mkfifo(home / "controller.log")
    (home / "zero.log").symlink_to("/dev/zero")
    (home / "a.log").write_text("a line\n")
    answer = served.ask("GET", "/v1/jobs/piped/logs")
    assert (answer.status, answer.value, answer.headers["x-processes"]) == (200, "a line\n", '["a"]')
    assert served.ask("GET", "/v1/jobs/piped/logs?process=controller").status == 404


def test_a_token_that_counts_no_longer_and_a_service_that_is_gone_are_said_to_be_so(served: Served, folder: Path) -> None:
    announce(folder, ServiceAddress(served.server.url, "old", None))
    with connected(folder) as client, pytest.raises(InputError, match="this token is none of the service's"):
        client.status()
    announce(folder, ServiceAddress("http://127.0.0.1:1", served.token, None))
    with pytest.raises(NoService, match=r"no service runs there; `rollmux run --resume .*` continues it"), connected(folder):
        pass
    withdraw(folder)
    with pytest.raises(NoService), connected(folder):
        pass


def test_a_service_of_an_older_version_is_told_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(folder) as client:
        with pytest.raises(InputError, match=f"^--at {folder}: the service is of an older RollMux than this command: upgrade it$"):
            client.ask("GET", "/v1/of_later_versions")
        monkeypatch.setattr(client, "request", lambda *_: (b'{"now_s": 1.0, "jobs": []}', {}))
        with pytest.raises(InputError, match="is of an older RollMux than this command: upgrade it"):
            client.status()


def test_a_service_that_is_starting_is_waited_for_and_a_run_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first start may compile for a minute, in which there is no journal; when that has begun, there is no address yet."""
    waited: list[float] = []
    for name, value in {
        "_BEGINS_S": 1.0,
        "sleep": waited.append,
        "monotonic": lambda: len(waited),
        "is_begun": lambda _: len(waited) > 0,
    }.items():
        monkeypatch.setattr(f"runtime.service.client.{name}", value)
    starting = pytest.raises(NoService, match="is starting, and does not answer yet")
    with take_lock(tmp_path / DRIVER_LOCK, purpose=SERVES), starting as raised:
        connected(tmp_path).__enter__()
    assert len(waited) == 2
    assert raised.value.has_journal
    waited.clear()
    for is_run in (False, True):
        refused = pytest.raises(NoService, match=r"no service runs there; `rollmux serve .*` starts one")
        with take_lock(tmp_path / DRIVER_LOCK) if is_run else nullcontext(), refused:
            connected(tmp_path).__enter__()
    assert not waited


def test_a_service_that_is_started_at_the_same_moment_makes_its_folder_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `rollmux serve DIR & rollmux submit FILE`; a folder that is there has a service, or has none."""
    folder, locks = tmp_path / "service", ExitStack()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            folder.mkdir()
            locks.enter_context(take_lock(folder / DRIVER_LOCK, purpose=SERVES))

    for name, value in {"_BEGINS_S": 5.0, "sleep": sleep, "monotonic": lambda: len(waited)}.items():
        monkeypatch.setattr(f"runtime.service.client.{name}", value)
    with locks, pytest.raises(NoService, match="is starting, and does not answer yet"):
        connected(folder).__enter__()
    waited.clear()
    monkeypatch.setattr("runtime.service.client.sleep", waited.append)
    with pytest.raises(NoService, match=r"no service runs there; `rollmux serve .*` starts one"):
        connected(tmp_path / "other").__enter__()
    assert len(waited) == 3
