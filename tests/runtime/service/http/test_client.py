"""What commands ask a service over HTTP, and what they say when it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.jobs.spec import JobSpec, parse_jobs
from runtime.service.address import ServiceAddress, announce, withdraw
from runtime.service.client import NoService, connected
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


def test_a_token_that_counts_no_longer_and_a_service_that_is_gone_are_said_to_be_so(served: Served, folder: Path) -> None:
    announce(folder, ServiceAddress(served.server.url, "old", None))
    with connected(folder) as client, pytest.raises(InputError, match="this token is none of the service's"):
        client.status()
    announce(folder, ServiceAddress("http://127.0.0.1:1", served.token, None))
    with pytest.raises(NoService, match=r"no service runs there; `rollmux serve .*` goes on"), connected(folder):
        pass
    withdraw(folder)
    with pytest.raises(NoService), connected(folder):
        pass
