"""Whoever may have lost the lease ends, with all of its process group, before it touches a device again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import rollmux_client

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
    assert "no answer from the service" in said and said.index("at 2 s this process ends") < said.index("this process group ends")


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
        while little._name_of("lease-1"):  # noqa: SLF001 (until its lease is over)
            signal.sigtimedwait([], 0.05)
        os.killpg(process.pid, signal.SIGCONT)
        said = assert_group_has_ended(process)
    assert "this process group ends" in said


def test_a_lease_that_the_service_has_given_up_ends_the_process_group() -> None:
    with serving({"one": 3}, ttl_s=2.0) as little:
        process = start(little, "with rollmux_client.attach() as job:\n    print('in', flush=True); time.sleep(60)")
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        little.jobs["one"].lease = None
        assert "no lease of job one any more" in assert_group_has_ended(process)


def test_pids_are_those_of_the_process_group() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert {os.getpid(), child.pid} <= {*rollmux_client.own_pids()}
        finally:
            child.kill()
    assert child.pid not in rollmux_client.own_pids()
