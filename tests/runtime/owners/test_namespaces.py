"""Owners whose process numbers mean other processes to the service: in containers, and after a restart of a machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rollmux_client import Service
from rollmux_processes import pid_space

from rollmux_env.errors import Conflict
from runtime.journal.facts import OwnerAttached
from runtime.owners.http import owner_processes
from runtime.owners.http.patrol import check_leases
from tests.children import Child
from tests.runtime.pretend import HERE, Listening, Served, attached_plan, job, plan_of, served

INSIDE = "4026-boot pid:[1234]"


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of nobody's."""
    with Child([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


async def lost(run: Served) -> None:
    """The lease of the only job is lost in its rollout."""
    run.pass_time(34.0)
    await run.settle()
    assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a"}


@pytest.mark.parametrize("ends", [True, False])
def test_a_number_of_another_namespace_is_no_process_of_the_owner(
    ends: bool, tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    async def work(run: Served) -> None:
        lease = (await run.leases.attach("a", 60.0, HERE, (stranger.pid,), INSIDE))["lease"]
        await run.leases.heartbeat(lease, (stranger.pid, os.getpid()), INSIDE)
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        await lost(run)
        if ends:
            stranger.kill()
            stranger.wait()
            check_leases(run.leases.ledger)
            assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a"}  # the owner may live
        await run.place("a")  # a stranger that lives is none of it
        assert run.leases.ledger.suspect_nodes() == {}
        facts = await run.stop()
        first = next(fact for fact in facts if isinstance(fact, OwnerAttached))
        assert (first.boot, [one.started for one in first.processes]) == ("", [0])

    served(work, attached_plan(tmp_path, job("a")))


def test_processes_of_a_client_that_says_no_namespace_are_those_of_its_host(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    async def work(run: Served) -> None:
        lease = (await run.leases.attach("a", 60.0, HERE, (stranger.pid,)))["lease"]
        await run.leases.heartbeat(lease, (stranger.pid,))
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        await lost(run)
        stranger.kill()
        stranger.wait()
        check_leases(run.leases.ledger)
        assert run.leases.ledger.suspect_nodes() == {}
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_an_owner_that_says_so_in_a_container_is_not_taken_to_be_gone(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    """As the command of `rollmux exec` that starts a container, which has the lease."""

    async def work(run: Served) -> None:
        lease = await run.place("a", pids=(stranger.pid,))
        await run.leases.heartbeat(lease, (1, 7), INSIDE)
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        await lost(run)
        stranger.kill()
        stranger.wait()
        check_leases(run.leases.ledger)
        assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a"}
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_a_node_comes_free_when_a_late_heartbeat_names_only_the_dead(tmp_path: Path) -> None:
    """As after a pause of the service: its owner has fenced itself, with short-lived children that were never heard of."""
    dead = [subprocess.Popen(["sleep", "0"]) for _ in range(2)]

    async def work(run: Served) -> None:
        with Child(["sleep", "60"]) as owner:
            lease = await run.place("a", pids=(owner.pid,))
            assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        for child in dead:
            child.wait()
        await run.leases.heartbeat(lease, (owner.pid, *(child.pid for child in dead)))
        run.pass_time(34.0)
        await run.settle()
        check_leases(run.leases.ledger)
        assert run.leases.ledger.suspect_nodes() == {}
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_a_process_that_carries_the_lease_and_was_never_named_keeps_a_node(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        with Child(["sleep", "60"]) as owner:
            lease = await run.place("a", pids=(owner.pid,))
            assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        with Child(["sleep", "60"], env={"ROLLMUX_LEASE": lease}, start_new_session=True) as rank:
            await lost(run)
            check_leases(run.leases.ledger)
            assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a"}
            with pytest.raises(Conflict, match=f"process {rank.pid} of its last lease lives"):
                await run.place("a")
        check_leases(run.leases.ledger)
        assert run.leases.ledger.suspect_nodes() == {}
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_processes_of_other_users_belong_to_an_owner_that_has_started_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by sudo; a number that was used again, after all of the owner's have ended, is nobody's."""
    here = pid_space()
    with (
        Child(["sh", "-c", "setsid sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as launcher,
        Child(["sleep", "60"], start_new_session=True) as stranger,
    ):
        assert launcher.stdout is not None
        child = int(launcher.stdout.readline())
        monkeypatch.setattr(owner_processes, "user_of", lambda pid: 1000 if pid == launcher.pid else 0)
        owner = OwnerAttached(0.0, "job", "lease", HERE, here, owner_processes.own_processes((launcher.pid,), here, "job"), ())
        known = owner_processes.known_processes(owner, (child, stranger.pid))
        assert [one.pid for one in known] == [launcher.pid, child]
        launcher.kill()
        launcher.wait()
        assert owner_processes.known_processes(owner, (stranger.pid,)) == owner.processes
        os.kill(child, signal.SIGKILL)


def test_a_process_of_another_job_is_not_taken_as_the_owners(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        carries = {"ROLLMUX_LEASE": "others", "ROLLMUX_JOB": "b"}
        with Child(["sleep", "60"]) as owner, Child(["sleep", "60"], env=carries) as other:
            lease = await run.place("a", pids=(1, other.pid, owner.pid))
            assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
            await run.leases.heartbeat(lease, (owner.pid, other.pid, 1))
            owner.kill()
            owner.wait()
            run.pass_time(34.0)
            await run.settle()
            check_leases(run.leases.ledger)
            assert run.leases.ledger.suspect_nodes() == {}
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


@pytest.mark.parametrize(
    ("here", "frees"),
    [
        (pid_space(), False),  # it lives
        (f"another-boot {pid_space().partition(' ')[2]}", True),
        (f"{pid_space().partition(' ')[0]} pid:[7]", False),  # the service has been started again, in a container
        ("", False),
    ],
)
def test_nodes_are_free_when_their_machine_was_started_again(
    here: str, frees: bool, tmp_path: Path, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a", pids=(stranger.pid,))
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        await lost(run)
        monkeypatch.setattr(owner_processes, "pid_space", lambda: here)
        run = await run.replaced()
        check_leases(run.leases.ledger)
        assert (run.leases.ledger.suspect_nodes() == {}) is frees
        await run.stop(permits=False)

    served(work, attached_plan(tmp_path, job("a")))


def inside(script: str, *words: str) -> list[str]:
    """The line that runs a Python script as the first process of a namespace; skips the test where there can be none."""
    line = ["unshare", "--pid", "--fork", "--mount-proc"]
    try:
        subprocess.run([*line, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine lets us make no namespace of processes: {error}")
    return [*line, sys.executable, "-c", script, *words]


FENCED = """
import os, sys, rollmux_processes
if sys.argv[1:]:  # as in a container
    os.setsid()
rollmux_processes.end_own_processes("its lease is lost", list)
print("goes on")
"""


@pytest.mark.parametrize("words", [("session",), ()])
def test_the_first_process_of_a_container_ends_itself(words: tuple[str, ...]) -> None:
    line = inside(FENCED, *words)
    with Child(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        out, err = process.communicate(timeout=60)
    assert (
        process.returncode in (137, -9)
        and out == ""
        and err == "rollmux_client: its lease is lost: this process ends, with all that belong to the job\n"
    )


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


OWNER = """
import os, sys, time
with open("/proc/sys/kernel/ns_last_pid", "w") as file:
    file.write(str(int(sys.argv[1]) - 1))
if os.fork():
    os.wait()
    sys.exit()
os.setsid()
import rollmux_client
with rollmux_client.attach("mine") as job, job.phase("rollout"):
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


def test_an_owner_in_a_container_with_the_number_of_a_stranger(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    """With real processes: it is stopped, its lease is lost, and the stranger ends."""
    service = Listening(plan_of(tmp_path / "service", []))
    try:
        with contextlib.closing(Service(service.url, service.token)) as client:
            client.ask("POST", "/v1/jobs", job("mine"))
        environment = os.environ | {"ROLLMUX_URL": service.url, "ROLLMUX_TOKEN": service.token}
        line = inside(OWNER, str(stranger.pid))
        with Child(line, env=environment, stdout=subprocess.PIPE, text=True) as owner:
            try:
                assert owner.stdout is not None and owner.stdout.readline() == f"{stranger.pid}\n"
                os.kill(child_of(child_of(owner.pid)), signal.SIGSTOP)
                assert service.service.driver is not None
                leases = service.service.driver.leases.ledger
                (lease,) = leases.leases.values()
                service.in_loop(lambda: leases.lose(lease, "no sign of life"))
                service.in_loop(lambda: check_leases(leases))
                assert leases.suspect_nodes() == {"rollout-0": "mine"} and stranger.poll() is None
                stranger.kill()
                stranger.wait()
                service.in_loop(lambda: check_leases(leases))
                assert leases.suspect_nodes() == {"rollout-0": "mine"}
            finally:
                os.kill(child_of(owner.pid), signal.SIGKILL)
    finally:
        service.close()
