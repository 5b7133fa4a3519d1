"""Whoever may have lost the lease ends, with all of its process group, before it touches a device again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import rollmux_client
import rollmux_processes

from tests.children import Child
from tests.clients.little_service import LittleService, Turn, serving

HERE = Path(rollmux_client.__file__).parent
STARTS = "import sys, subprocess, time, rollmux_client\nhelper = subprocess.Popen(['sleep', '60'])\n"


def start(little: LittleService, script: str) -> subprocess.Popen[str]:
    """A job's process in a group of its own, with another process in it."""
    environment = os.environ | {"PYTHONPATH": str(HERE), "ROLLMUX_URL": little.url, "ROLLMUX_TOKEN": "secret", "ROLLMUX_JOB": "one"}
    return subprocess.Popen(
        [sys.executable, "-c", STARTS + script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def assert_group_has_ended(process: subprocess.Popen[str]) -> str:
    """It was ended by SIGKILL, with all of its group; returns what it has said."""
    out, err = process.communicate(timeout=60)  # ends when nobody has the pipes any more
    assert process.returncode == -signal.SIGKILL
    assert "touched" not in out
    return err


def test_without_an_answer_it_warns_and_then_ends_its_process_group() -> None:
    with serving({"one": 3}, ttl_s=2.0) as little:
        process = start(
            little, "with rollmux_client.attach() as job, job.phase('rollout'):\n    print('in', flush=True); time.sleep(60)"
        )
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        little.silent.set()
        said = assert_group_has_ended(process)
    assert "no answer from the service" in said and said.index("at 2 s this process ends") < said.index(
        "this process ends, with all that belong to the job"
    )


def test_a_process_that_was_stopped_for_too_long_does_not_touch_a_device_when_it_wakes() -> None:
    script = """
with rollmux_client.attach() as job:
    print('attached', flush=True)
    with job.phase('rollout'):
        print('touched')
"""
    with serving({"one": 3, "other": 3}, ttl_s=2.0) as little:
        little.held["rollout"] = little.held["training"] = Turn("other", "rollout", 0, False)
        process = start(little, script)
        assert process.stdout is not None and process.stdout.readline() == "attached\n"
        with little.changed:
            assert little.changed.wait_for(lambda: bool(little.waiting), 30)
        os.killpg(process.pid, signal.SIGSTOP)
        with little.changed:
            little._free(["rollout"])  # noqa: SLF001 (now it is granted, to a process that is stopped)
        lease = str(little.jobs["one"].lease)
        while little._name_of(lease):  # noqa: SLF001 (until its lease is over)
            signal.sigtimedwait([], 0.05)
        os.killpg(process.pid, signal.SIGCONT)
        said = assert_group_has_ended(process)
    assert "this process ends, with all that belong to the job" in said


def test_a_lease_that_the_service_has_given_up_ends_the_process_group() -> None:
    with serving({"one": 3}, ttl_s=2.0) as little:
        process = start(little, "with rollmux_client.attach() as job:\n    print('in', flush=True); time.sleep(60)")
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        little.jobs["one"].lease = None
        assert "no lease of job one any more" in assert_group_has_ended(process)


def test_pids_are_those_of_the_group_of_descendants_and_of_what_carries_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    job = rollmux_client.Job(None, "one")
    job._mine.leases.add("lease-7")  # noqa: SLF001
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    marked = {"env": {"ROLLMUX_LEASE": "lease-7"}}
    forks = f"{sys.executable} -c 'import os, time; print(os.getpid(), flush=True); time.sleep(60)' &"
    with (
        Child(["sleep", "60"]) as child,
        Child(["sleep", "60"], start_new_session=True) as apart,
        Child(["sh", "-c", forks], start_new_session=True, **marked, **quiet) as launcher,  # type: ignore[call-overload]
    ):
        orphan = int(launcher.stdout.readline())
        launcher.wait()  # its child has another parent from now on
        try:
            assert {os.getpid(), child.pid, apart.pid, orphan} <= {*job.pids()}
            job._mine.leases.clear()  # noqa: SLF001
            assert orphan in job.pids()  # it is remembered
            assert orphan not in rollmux_client.Job(None, "one").pids()
        finally:
            for pid in (child.pid, apart.pid, orphan):
                os.kill(pid, signal.SIGKILL)
    assert child.pid not in job.pids()


def test_children_carry_the_lease_of_a_script_that_attaches_by_itself_and_do_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been told to leave the session and its parent is a daemon: it is named as long as it lives."""
    forks = "setsid sleep 60 >/dev/null 2>&1 & echo $!"
    with serving({"one": 1, "other": 1}) as little:
        for name, value in (("URL", little.url), ("TOKEN", "secret"), ("JOB", "one")):
            monkeypatch.setenv(f"ROLLMUX_{name}", value)
        with rollmux_client.attach() as job:
            daemon = int(subprocess.run(["sh", "-c", forks], capture_output=True, check=True).stdout)
            with rollmux_client.attach("other") as other:
                assert other.lease not in (None, job.lease)
            assert job.lease is not None and daemon in rollmux_processes.carriers({job.lease}, [daemon])
        assert daemon in job.pids()
        os.kill(daemon, signal.SIGKILL)
    assert not {"ROLLMUX_LEASE", "ROLLMUX_ATTACHED"} & os.environ.keys()


RANKS = """
import os, subprocess, sys, time, rollmux_client
with rollmux_client.attach() as job, job.phase("rollout"):
    quiet = dict(stdin=subprocess.DEVNULL, start_new_session=True)
    subprocess.Popen(["env", "-i", "sleep", "1000"], **quiet)
    print("in", flush=True)
    time.sleep(1000)
"""


def test_what_has_left_the_session_of_a_lost_lease_ends_with_it() -> None:
    with serving({"one": 3}, ttl_s=2.0) as little:
        process = start(little, RANKS)
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        little.silent.set()
        assert_group_has_ended(process)  # nobody has its output any more


def test_under_exec_a_script_that_is_silent_while_its_lease_is_kept_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced: list[str] = []
    with serving({"one": 3}, ttl_s=2.0) as little:
        keeper = rollmux_client.Job(rollmux_client.Service(little.url, "secret"), "one", fence=fenced.append)
        with contextlib.ExitStack() as stack:
            keeper.attach()  # as `rollmux exec` does, without a mark for its own children
            stack.callback(keeper.end, done=True)
            for name, value in {
                "URL": little.url,
                "TOKEN": "secret",
                "JOB": "one",
                "LEASE": str(keeper.lease),
                "TTL_S": "2",
            }.items():
                monkeypatch.setenv(f"ROLLMUX_{name}", value)
            for lives in (True, False):
                monkeypatch.setenv("ROLLMUX_KEEPER", rollmux_processes.keeper_of(os.getpid()) if lives else f"{os.getpid()} 1")
                job = rollmux_client.Job(rollmux_client.Service(little.url, "secret"), "one", fence=fenced.append)
                job._beat = lambda: None  # type: ignore[method-assign]  # noqa: SLF001 (a call of C that lets no other thread run)
                with job:
                    job._answered_s -= 60.0  # noqa: SLF001
                    job._check_fence()  # noqa: SLF001
                    assert bool(fenced) is not lives
                    job._answered_s += 60.0  # noqa: SLF001


CLOSED_STDERR = """
import os
with rollmux_client.attach() as job, job.phase("rollout"):
    print("in", flush=True)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    if %s:
        os.close(reading)
        os.close(writing)
    else:
        os.set_blocking(writing, False)
        while True:
            try:
                os.write(writing, bytes(1000))
            except BlockingIOError:
                break
        os.set_blocking(writing, True)
    time.sleep(60)
"""


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_line_that_cannot_be_written_keeps_nothing_alive(is_closed: bool) -> None:
    """Its reader has gone, as after Ctrl-C in `python train.py |& tee log`, or reads nothing."""
    with serving({"one": 3}, ttl_s=2.0) as little:
        process = start(little, CLOSED_STDERR % is_closed)
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        little.jobs["one"].lease = None
        assert_group_has_ended(process)


def test_a_request_that_takes_longer_than_its_timeout_delays_no_end() -> None:
    """Names are resolved without one."""
    script = """
import socket
with rollmux_client.attach() as job, job.phase("rollout"):
    socket.getaddrinfo = lambda *_, **__: time.sleep(60)
    print("in", flush=True)
    time.sleep(60)
"""
    with serving({"one": 3}, ttl_s=2.0) as little:
        process = start(little, script)
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        little.silent.set()
        assert "no answer from the service" in assert_group_has_ended(process)


def test_a_process_lives_as_long_as_one_of_its_threads_does() -> None:
    """As one whose driver hangs after it was killed."""
    script = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    with Child([sys.executable, "-c", f"{script}; print(flush=True); ctypes.CDLL(None).pthread_exit(None)"], stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline()
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            signal.sigtimedwait([], 0.01)
        one = rollmux_processes.process(process.pid)
        assert one is not None and not one.is_zombie


def test_a_keeper_that_is_stopped_fences_nothing_and_is_no_dead_one() -> None:
    """As `rollmux exec` after Ctrl-Z: its command goes on."""
    fenced: list[str] = []
    with Child(["sleep", "60"]) as keeper:
        job = rollmux_client.Job(None, "one", fence=fenced.append)
        job._keeper = rollmux_processes.keeper_of(keeper.pid)  # noqa: SLF001
        job._answered_s -= 60.0  # noqa: SLF001
        job._check_fence()  # noqa: SLF001
        assert fenced == []
        keeper.send_signal(signal.SIGSTOP)
        os.waitpid(keeper.pid, os.WUNTRACED)
        assert rollmux_processes.is_keeper_alive(job._keeper)  # noqa: SLF001
        job._check_fence()  # noqa: SLF001
        assert len(fenced) == 1


FORKS = """
import os
with rollmux_client.attach() as job, job.phase("rollout"):
    used = job._service._idle[0].sock.getsockname()
    if os.fork() == 0:
        job._service.ask("GET", "/v1/jobs/one")
        assert job._service._idle[0].sock.getsockname() != used
        time.sleep(2.5)  # longer than a lease lasts
        job._check_fence()
        sys.exit(7)  # through the `with` blocks
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    time.sleep(60)
"""


def test_a_forked_child_neither_ends_the_job_nor_gives_its_lease_back() -> None:
    """Heartbeats are its parent's."""
    with serving({"one": 3}, ttl_s=2.0) as little:
        process = start(little, FORKS)
        try:
            assert process.stdout is not None and process.stdout.readline() == "7\n"
            assert little.jobs["one"].lease is not None and "rollout" in little.held
        finally:
            little.jobs["one"].lease = None
            assert_group_has_ended(process)


def test_a_404_of_a_proxy_whose_service_restarts_is_no_lost_lease() -> None:
    fenced: list[str] = []
    with (
        serving({"one": 3}) as little,
        rollmux_client.Job(rollmux_client.Service(little.url, "secret"), "one", fence=fenced.append) as job,
    ):
        little.proxy_status = 404
        with pytest.raises(OSError, match="answers 404, and no service does so"):
            job._once("heartbeat", {}, 1.0)  # noqa: SLF001
        little.proxy_status = 0
        job._once("heartbeat", {}, 1.0)  # noqa: SLF001
    assert fenced == []


def test_a_request_that_is_repeated_after_the_lease_was_given_back_by_another_thread_asks_for_no_lease() -> None:
    fenced, paths = list[str](), list[str]()

    class Stopping:
        def ask(self, method: str, path: str, *_: object) -> dict[str, object]:
            paths.append(path)
            if path.endswith("/acquire"):
                job._let_go()  # noqa: SLF001
                raise rollmux_client.Refused(503, "the service is stopping")
            return {}

    job = rollmux_client.Job(Stopping(), "one", fence=fenced.append)  # type: ignore[arg-type]
    job._keep("7", 30.0)  # noqa: SLF001
    with pytest.raises(rollmux_client.Refused, match="job one: its lease has been given back"):
        job.acquire(job.phase("rollout"))
    assert fenced == [] and {*paths} == {"/v1/leases/7/heartbeat", "/v1/leases/7/acquire"}
