"""`rollmux exec`: a command on the nodes that a service gives its job."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import rollmux_client
import rollmux_processes

from runtime.commands.leased_command import LeasedCommand, Signalled
from tests.children import Child
from tests.clients import little_service
from tests.clients.little_service import TOKEN, LittleService, serving
from tests.conftest import Command

SIDES = ("rollout", "training")
ROOT = Path(__file__).parents[3]
CLIENT = str(Path(rollmux_client.__file__).parent)
ENTRY = "{id: %s, attach: true, iterations: 3, slo: 2, rollout: {worst_case_s: 1}, training: {worst_case_s: 1}}"
SCRIPT = """
import os, sys, rollmux_client

def say(*words):
    with open("log", "a") as file:
        print(*words, file=file)

say("starts")
with rollmux_client.attach() as job:
    for k in job.iterations():
        with job.phase("rollout"):
            say(os.environ["ROLLMUX_JOB"], k, sorted(os.sched_getaffinity(0)), repr(os.environ["CUDA_VISIBLE_DEVICES"]))
        with job.phase("training"):
            if sys.argv[1:] == [str(k)]:
                sys.exit(3)
"""


CATCHES = """
import signal, subprocess, sys

def catch(*_):
    print("caught", flush=True)
    sys.exit(7)

signal.signal(signal.SIGUSR1, signal.SIG_IGN)
subprocess.Popen(["sleep", "60"])  # which ignores it
signal.signal(signal.SIGUSR1, catch)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", CLIENT)
    monkeypatch.chdir(tmp_path)
    for name in ("ROLLMUX_LEASE", "ROLLMUX_URL", "ROLLMUX_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.yaml").write_text(f"version: 1\njobs:\n  - {ENTRY % 'mine'}\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "job.yaml"


def point_to(little: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_URL", little.url)
    monkeypatch.setenv("ROLLMUX_TOKEN", TOKEN)


def test_a_command_goes_on_after_its_last_whole_iteration_and_ends_the_job_when_it_succeeds(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({}) as little:
        point_to(little, monkeypatch)
        words = ("exec", str(file), "--", sys.executable, "script.py")
        status, _, said = command(*words, "1")
        assert status == 3 and "job mine runs on rollout-0 training-0" in said
        assert little.jobs["mine"].state == "queued" and not little.held
        status, _, _ = command(*words)
        assert status == 0 and little.jobs["mine"].state == "done"
        status, _, said = command(*words)
        assert (status, said.count("\n")) == (2, 1) and "has ended already: done" in said
    turns = [f"mine {k} [0] ''" for k in range(3)]
    assert Path("log").read_text().splitlines() == ["starts", *turns[:2], "starts", *turns[1:]]


def test_a_command_sees_the_devices_of_its_nodes_by_their_names_or_none_and_a_line(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = socket.gethostname()
    shows = ("exec", str(file), "--", "sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES] $CUDA_DEVICE_ORDER" >> log; exit 3')

    def run(host: str, gpus: list[int | str], shown: str | None) -> tuple[int, str]:
        shares = zip(SIDES, ([gpus[0]], [gpus[1]]) if gpus else ([], []), strict=True)
        nodes = {pool: [{"name": pool, "host": host, "gpus": own, "cores": [0]}] for pool, own in shares}
        monkeypatch.setattr(little_service, "NODES", nodes)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if shown is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        with serving({}) as little:
            point_to(little, monkeypatch)
            status, _, said = command(*shows)
        return status, said

    assert run(f"{host.upper()}.cluster.internal", [4, 5], "4,5")[0] == 3
    assert run(host, ["GPU-aa", "GPU-bb"], None)[0] == 3
    status, said = run(f"not-{host}.cluster.internal", [0, 1], None)
    assert status == 3 and f"none of the nodes of job mine is on this machine: they are on not-{host}.cluster.internal" in said
    assert Path("log").read_text().splitlines() == [f"[{gpus}] PCI_BUS_ID" for gpus in ("4,5", "GPU-aa,GPU-bb", "")]
    assert "states device_gb" not in said
    file.write_text(file.read_text().replace("rollout: {worst_case_s: 1}", "rollout: {worst_case_s: 1, device_gb: 1}"))
    said = run(host, [], None)[1]
    assert "job mine states device_gb, and the service knows no GPU of its nodes on this machine: the command sees none" in said
    status, said = run(host, [0, 1], "4,5")
    assert status == 2 and "CUDA_VISIBLE_DEVICES=4,5 hides GPU 0, 1, which the service has given to job mine" in said


def test_signals_are_passed_on_and_what_a_command_leaves_behind_ends(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as little:
        point_to(little, monkeypatch)
        start = [sys.executable, "-m", "rollmux", "exec", str(file), "--", sys.executable, "-c", CATCHES]
        with Child(start, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": CLIENT}) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGUSR1)
            assert process.stdout.read() == "caught\n"  # nobody has the pipe any more
            process.wait()
        assert process.returncode == 7 and little.jobs["mine"].lease is None


def test_a_signal_that_another_thread_takes_is_passed_on(tmp_path: Path) -> None:
    running = LeasedCommand(("sh", "-c", "touch begun; exec sleep 60"), lambda _: None)

    def take() -> None:  # as the kernel lets any thread do when two signals come at once
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        time.sleep(0.5)  # this finds a fault only if the main thread waits for the command by then
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    thread = threading.Thread(target=take, daemon=True)
    with contextlib.chdir(tmp_path), running.signals():
        thread.start()
        assert running.run({**os.environ, rollmux_processes.LEASE: "one"}, set()) == (128 + signal.SIGTERM, "")
    thread.join()


def test_a_signal_while_it_waits_for_a_placement_ends_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"mine": 3}) as little:
        point_to(little, monkeypatch)
        with little.changed:
            little._attach(little.jobs["mine"])  # noqa: SLF001 (somebody else has the job)
        start = [sys.executable, "-m", "rollmux", "exec", str(file), "--", "true"]
        with Child(start, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": CLIENT}) as process:
            assert process.stderr is not None and "another lease of the job lives" in process.stderr.readline()
            process.terminate()
            process.wait()
        assert process.returncode == 128 + signal.SIGTERM


def test_a_command_is_started_again_where_its_job_moves(command: Command, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as little:
        point_to(little, monkeypatch)
        attach = little._attach  # noqa: SLF001

        def attach_and_move(job: object) -> object:
            little.move = not little.move  # the first time it has to move, the second time not
            return attach(job)  # type: ignore[arg-type]

        monkeypatch.setattr(little, "_attach", attach_and_move)
        status, _, said = command("exec", str(file), "--", sys.executable, "script.py")
    assert status == 0 and "job mine moves" in said
    assert len(little.granted) == 6 and Path("log").read_text().count("starts") == 2


def test_a_lost_lease_ends_the_command(command: Command, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}, ttl_s=1.5) as little:
        point_to(little, monkeypatch)
        answer = little.answer

        def until_it_is_on(method: str, path: str, body: dict[str, object]) -> tuple[int, dict[str, object]]:
            if Path("on").exists():
                little.silent.set()
            return answer(method, path, body)

        monkeypatch.setattr(little, "answer", until_it_is_on)
        status, _, said = command("exec", str(file), "--", "sh", "-c", "touch on; sleep 60")
    assert status == 128 + signal.SIGKILL and "no answer from the service" in said


def test_a_service_that_ends_right_after_it_has_granted_a_lease_is_given_up(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({}, ttl_s=1.0) as little:
        point_to(little, monkeypatch)
        attach = little._attach  # noqa: SLF001

        def attach_and_end(job: object) -> object:
            threading.Timer(0.2, little.silent.set).start()
            return attach(job)  # type: ignore[arg-type]

        def heartbeat(*_: object) -> object:
            little.changed.wait_for(little.silent.is_set)
            return 503, {"error": "the service is stopping"}

        monkeypatch.setattr(little, "_attach", attach_and_end)
        monkeypatch.setattr(little, "_ask", heartbeat)
        status, _, said = command("exec", str(file), "--", "touch", "on")
    assert status == 75 and " s, and the lease of job mine lasts 1 s\n" in said and "no answer from the service for" in said
    assert not Path("on").exists()


@pytest.mark.parametrize("is_attached", [True, False])
def test_a_command_is_not_started_with_a_lease_that_is_lost_already(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch, is_attached: bool
) -> None:
    """As after a pause of exec, or of the service, between the lease and the command."""
    lost = threading.Event()

    def wait(job: rollmux_client.Job, *_: object) -> None:
        lost.set()
        while not job._lost:  # noqa: SLF001
            job._wake.set()  # noqa: SLF001
            signal.sigtimedwait([], 0.01)

    if is_attached:
        monkeypatch.setattr("runtime.commands.executing._end_orphans_of_others", wait)
    else:
        lost.set()
    with serving({}, ttl_s=1.5) as little:
        point_to(little, monkeypatch)
        monkeypatch.setattr(little, "_ask", lambda *_: (200, {"stop": True, "lost": "no sign of life"} if lost.is_set() else {}))
        status, _, said = command("exec", str(file), "--", "touch", "on")
    assert status == 75 and "the lease of job mine is over: no sign of life" in said
    assert not Path("on").exists()


def test_an_exec_that_was_stopped_for_too_long_does_not_start_its_command_when_it_wakes(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(job: rollmux_client.Job, *_: object) -> None:
        job._answered_s -= 60.0  # noqa: SLF001

    monkeypatch.setattr("runtime.commands.executing._end_orphans_of_others", stop)
    for name in ("_beat", "_watch"):  # they wake later than the main thread
        monkeypatch.setattr(rollmux_client.Job, name, lambda _: None)
    with serving({}) as little:
        point_to(little, monkeypatch)
        status, _, said = command("exec", str(file), "--", "touch", "on")
    assert status == 75 and "no answer from the service for 60 s" in said
    assert not Path("on").exists()


def test_a_process_that_does_not_end_with_a_lost_lease_is_said_once(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver hangs: exec waits for it, as it has the device."""
    sends, asked = LeasedCommand._send, [0]  # noqa: SLF001

    def hang(pids: set[int], number: int) -> None:
        asked[0] += 1
        if asked[0] > 4:
            sends(pids, number)

    monkeypatch.setattr(LeasedCommand, "_send", staticmethod(hang))
    monkeypatch.setattr("runtime.commands.leased_command._DIES_S", 0.0)
    with serving({}, ttl_s=1.5) as little:
        point_to(little, monkeypatch)
        ask = little._ask  # noqa: SLF001
        lost = {"stop": True, "lost": "no sign of life"}
        monkeypatch.setattr(little, "_ask", lambda *words: (200, lost) if Path("on").exists() else ask(*words))
        status, _, said = command("exec", str(file), "--", "sh", "-c", "touch on; exec sleep 60")
    assert status == 128 + signal.SIGKILL
    assert said.count("no sign of life: the command ends") == 1 and said.count(" does not end, and exec waits for it") == 1


LAUNCHER = """
import os, subprocess, sys, time
quiet = dict(stdin=subprocess.DEVNULL, start_new_session=True)
for words in (["sleep", "1000"], ["env", "-i", "sleep", "1000"], ["sh", "-c", "exec env -i sleep 1000 &"]):
    subprocess.Popen(words, **quiet)  # as torchrun starts ranks
open(sys.argv[1], "w").close()
time.sleep(float(sys.argv[2]))
os.abort()
"""


def test_what_a_launcher_has_started_in_other_sessions_ends_with_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a launcher that is killed, for example; the lease is given back when no process of it is left."""
    with serving({}) as little:
        point_to(little, monkeypatch)
        launch = [sys.executable, "-c", LAUNCHER, str(file.parent / "on"), "0"]
        start = [sys.executable, "-m", "rollmux", "exec", str(file), "--", *launch]
        with Child(start, cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": CLIENT}) as process:
            assert process.stdout is not None and process.stdout.read() == b""  # ends when nobody has the pipe any more
            process.wait()
        assert process.returncode == 128 + signal.SIGABRT and little.jobs["mine"].lease is None


def test_a_lost_lease_ends_what_has_left_the_session_of_the_command(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}, ttl_s=1.5) as little:
        point_to(little, monkeypatch)
        launch = [sys.executable, "-c", LAUNCHER, str(file.parent / "on"), "1000"]
        start = [sys.executable, "-m", "rollmux", "exec", str(file), "--", *launch]
        with Child(start, cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": CLIENT}) as process:
            while not Path("on").exists():
                signal.sigtimedwait([], 0.05)
            little.silent.set()
            assert process.stdout is not None and process.stdout.read() == b""
            process.wait()
        assert process.returncode == 128 + signal.SIGKILL


def test_what_a_killed_exec_has_left_ends_before_the_next_one_attaches(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({}) as little:
        point_to(little, monkeypatch)
        start = [sys.executable, "-m", "rollmux", "exec", str(file), "--", "sh", "-c", "setsid sleep 1000 & echo on; wait"]
        with Child(start, cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": CLIENT}) as process:
            assert process.stdout is not None and process.stdout.readline() == b"on\n"
            process.kill()
            process.wait()
            little.jobs["mine"].lease = None  # it is lost after a while
            monkeypatch.setenv("ROLLMUX_URL", little.url.replace("127.0.0.1", "localhost"))  # the same service
            status, _, said = command("exec", str(file), "--", "true")
            assert process.stdout.read() == b""
    assert status == 0 and "what an earlier `rollmux exec` of job mine has left ends: process " in said


@pytest.mark.parametrize("ends", [True, False])
def test_what_another_exec_has_left_ends_also_if_that_one_had_the_job_while_this_one_waited(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    orphans: list[Child[bytes]] = []
    attach = rollmux_client.Job.attach
    with serving({}) as little:
        point_to(little, monkeypatch)

        def attach_later(job: rollmux_client.Job) -> None:
            marks = {"ROLLMUX_URL": little.url, "ROLLMUX_JOB": "mine", "ROLLMUX_LEASE": "its", rollmux_processes.KEEPER: "1 0"}
            orphans.append(Child(["sleep", "1000"], env=os.environ | marks))
            attach(job)

        monkeypatch.setattr(rollmux_client.Job, "attach", attach_later)
        if not ends:
            monkeypatch.setattr("runtime.commands.executing.end_all", lambda find, grace_s: find())
        status, _, said = command("exec", str(file), "--", "true")
        (orphan,) = orphans
        with orphan:
            assert "what an earlier `rollmux exec` of job mine has left ends: process " in said
            assert (status == 0, orphan.poll() is not None) == (ends, ends)
            orphan.kill()
        assert ends or "cannot be ended; end it first" in said
        assert (little.jobs["mine"].lease is None) == ends


def test_a_lease_of_a_process_that_cannot_be_ended_is_not_given_back(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another user, which sudo has started."""
    monkeypatch.setattr("runtime.commands.leased_command.end_all", lambda find, grace_s: find())
    with serving({}) as little:
        point_to(little, monkeypatch)
        monkeypatch.setattr("runtime.commands.leased_command.LeasedCommand._send", lambda *_: None)
        status, _, said = command("exec", str(file), "--", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $! >pid")
        os.kill(int(Path("pid").read_text()), signal.SIGKILL)
        assert status == 1 and "cannot be ended: its lease is not given back" in said
        assert little.jobs["mine"].lease is not None


def test_a_lease_of_a_process_that_cannot_be_seen_is_not_given_back(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another user with hidepid, which the kernel makes a child of exec, though /proc does not show it."""
    hidden = Path("pid")
    earlier = {pid for pid, one in rollmux_processes.processes().items() if one.parent == os.getpid()}  # of other tests

    def visible() -> dict[int, rollmux_processes.Process]:
        own = int(hidden.read_text() or 0) if hidden.exists() else 0
        return {pid: one for pid, one in rollmux_processes.processes().items() if pid != own and pid not in earlier}

    monkeypatch.setattr("runtime.commands.leased_command._TERMINATES_S", 0.1)
    monkeypatch.setattr("runtime.commands.leased_command.processes", visible)
    with serving({}) as little:
        point_to(little, monkeypatch)
        status, _, said = command("exec", str(file), "--", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $! >pid")
        assert status == 1 and "a process that cannot be seen of job mine cannot be ended: its lease is not given back" in said
        assert little.jobs["mine"].lease is not None
        os.kill(int(hidden.read_text()), signal.SIGKILL)
        os.waitpid(int(hidden.read_text()), 0)
        earlier.clear()
        _, _, said = command("exec", str(file), "--", "true")
        assert "cannot be seen" not in said


@pytest.mark.parametrize("how", ["ends", "is fenced"])
def test_processes_of_a_command_end_also_if_nobody_reads_the_lines_about_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """As after Ctrl-C in `rollmux exec ... |& tee log`, which ends tee."""
    with serving({}, ttl_s=1.5 if how == "is fenced" else 30.0) as little:
        point_to(little, monkeypatch)
        start = [sys.executable, "-m", "rollmux", "exec", str(file), "--", "sh", "-c"]
        script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!; read go; exit 3"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with Child([*start, script], cwd=ROOT, env=os.environ | {"PYTHONPATH": CLIENT}, **pipes) as process:  # type: ignore[call-overload]
            rest = int(process.stdout.readline())
            process.stderr.close()
            if how == "ends":
                process.stdin.close()
            else:
                little.silent.set()
            process.wait(60)
        assert process.returncode == (3 if how == "ends" else 128 + signal.SIGKILL)
        assert rollmux_processes.process(rest) is None
        assert how == "is fenced" or little.jobs["mine"].lease is None


def test_a_signal_that_cannot_be_passed_on_is_said_and_ends_nothing(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As to sudo, which another user owns."""

    def refuse(*_: int) -> None:
        raise PermissionError

    def press() -> None:
        while not Path("on").exists():
            signal.sigtimedwait([], 0.01)
        os.kill(os.getpid(), signal.SIGUSR1)
        Path("go").touch()

    monkeypatch.setattr("runtime.commands.leased_command.os.killpg", refuse)
    with serving({}) as little:
        point_to(little, monkeypatch)
        pressing = threading.Thread(target=press)
        pressing.start()
        waits = "touch on; while [ ! -e go ]; do sleep 0.05; done; exit 5"
        status, _, said = command("exec", str(file), "--", "sh", "-c", waits)
        pressing.join()
    assert status == 5 and "SIGUSR1 cannot be passed on to the command, which belongs to another user" in said


def test_a_lease_is_not_given_back_by_an_error_while_the_command_may_live(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(started: LeasedCommand) -> str:
        assert started._process is not None  # noqa: SLF001
        started._process.wait()  # noqa: SLF001
        raise OSError(errno.ENFILE, "too many open files")

    monkeypatch.setattr("runtime.commands.leased_command.LeasedCommand._end_rest", fail)
    with serving({}) as little:
        point_to(little, monkeypatch)
        assert command("exec", str(file), "--", "true")[0] != 0
        assert little.jobs["mine"].lease is not None


def test_a_second_signal_while_a_lease_is_given_back_has_the_status_of_the_first(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter((signal.SIGTERM, signal.SIGINT))

    def press(*_: object, **__: object) -> None:
        raise Signalled(next(numbers))

    monkeypatch.setattr(rollmux_client.Job, "attach", press)
    monkeypatch.setattr(rollmux_client.Job, "end", press)
    with serving({}) as little:
        point_to(little, monkeypatch)
        assert command("exec", str(file), "--", "true")[0] == 128 + signal.SIGTERM


def test_a_signal_that_is_ignored_at_the_start_stays_ignored(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup: for the command, too."""
    with serving({}) as little:
        point_to(little, monkeypatch)
        start = [
            "nohup",
            sys.executable,
            "-m",
            "rollmux",
            "exec",
            str(file),
            "--",
            "sh",
            "-c",
            "echo on; read go; kill -HUP $$; echo $go",
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with Child(start, cwd=ROOT, env=os.environ | {"PYTHONPATH": CLIENT}, **pipes) as process:  # type: ignore[call-overload]
            assert process.stdout.readline() == b"on\n"
            process.send_signal(signal.SIGHUP)
            assert process.communicate(b"goes on\n")[0] == b"goes on\n"
        assert process.returncode == 0 and little.jobs["mine"].state == "done"


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        (f"[{ENTRY % 'a'}, {ENTRY % 'b'}]", (), "has 2 jobs; --job says which: a, b"),
        (f"[{ENTRY % 'a'}]", ("--job", "c"), "has no such job; it has a"),
        ("[{id: a, task: echo, iterations: 3, slo: 2}]", (), "job a: is no job to attach"),
        (f"[{ENTRY % 'a'}]", ("--at", "nowhere"), "no service runs there"),
        (f"[{ENTRY % 'a'}]", (), "the token is wrong"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_line(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: tuple[str, ...], problem: str
) -> None:
    file.write_text(f"version: 1\njobs: {text}\n")
    with serving({}) as little:
        monkeypatch.setenv("ROLLMUX_URL", little.url)
        monkeypatch.setenv("ROLLMUX_TOKEN", "wrong")
        status, out, err = command("exec", str(file), *options, "--", "true")
    assert (status, out, err.count("\n")) == (2, "", 1) and problem in err


@pytest.mark.parametrize(("word", "where"), [("no-such-program", "on the path"), ("./job.yaml", "in that place")])
def test_a_command_that_there_is_not_is_named_before_nodes_are_held_for_it(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch, word: str, where: str
) -> None:
    with serving({}) as little:
        point_to(little, monkeypatch)
        status, _, err = command("exec", str(file), "--", word)
    assert (status, err) == (2, f"rollmux: {word}: there is no command of that name {where}; nothing was submitted\n")
    assert "mine" not in little.jobs


def test_a_service_that_nobody_reaches_is_given_up_after_growing_pauses(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("runtime.commands.executing.time.sleep", pauses.append)
    monkeypatch.setenv("ROLLMUX_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ROLLMUX_TOKEN", TOKEN)
    status, out, err = command("exec", str(file), "--", "true")
    assert (status, out, err.count("\n")) == (75, "", 2) and "http://127.0.0.1:1: the service does not answer" in err
    assert "http://127.0.0.1:1 is asked again for up to 30 s: " in err
    assert len(pauses) > 3 and all(later > earlier for earlier, later in itertools.pairwise(pauses))


def test_an_entry_that_has_changed_is_told_with_its_keys(command: Command, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as little:
        point_to(little, monkeypatch)
        assert command("exec", str(file), "--", "false")[0] == 1
        file.write_text(file.read_text().replace("slo: 2", "slo: 3"))
        changed = "job mine: its entry has changed since the service took it: slo (2, now 3); "
        status, _, said = command("exec", str(file), "--", "true")
        assert status == 2 and f"{changed}--accept-changes continues with what the service has" in said
        assert little.jobs["mine"].state == "queued"
        status, _, said = command("exec", str(file), "--accept-changes", "--", "true")
        assert status == 0 and f"{changed}the service keeps what it has" in said
        assert little.jobs["mine"].state == "done"


def test_a_service_that_restarts_is_asked_again_about_a_job(command: Command, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.commands.executing._PAUSES_S", (0.0, 0.0))
    with serving({}) as little:
        point_to(little, monkeypatch)
        answer, asked = little.answer, list[str]()

        def refuse_once(method: str, path: str, body: dict[str, object]) -> little_service.Answer:
            if path in ("/v1/jobs", "/v1/jobs/mine") and method not in asked:
                asked.append(method)
                return 503, {"error": "the service is stopping"}
            return answer(method, path, body)

        monkeypatch.setattr(little, "answer", refuse_once)
        assert command("exec", str(file), "--", "false")[0] == 1
        file.write_text(file.read_text().replace("slo: 2", "slo: 3"))
        asked.clear()
        status, _, said = command("exec", str(file), "--", "true")
        assert status == 2 and "its entry has changed since the service took it" in said
        monkeypatch.setattr(
            little, "answer", lambda method, *words: (401, {"error": "who?"}) if method == "GET" else answer(method, *words)
        )
        assert command("exec", str(file), "--", "true")[0] == 2  # it cannot be compared
        assert asked == ["POST", "GET"] and said.count("is asked again for up to 30 s: the service is stopping") == 2


def test_a_command_whose_job_moves_starts_again_also_if_the_service_restarts(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.commands.executing._PAUSES_S", (0.0, 0.0))
    with serving({}) as little:
        point_to(little, monkeypatch)
        answer, refusals = little.answer, iter([(503, {"error": "the service is stopping"})])

        def refuse_once(method: str, path: str, body: dict[str, object]) -> little_service.Answer:
            if method == "GET" and Path("on").exists() and (refusal := next(refusals, None)) is not None:
                little.jobs["mine"].state = "moving"
                return refusal
            return answer(method, path, body)

        monkeypatch.setattr(little, "answer", refuse_once)
        status, _, said = command("exec", str(file), "--", "sh", "-c", "[ -e on ] || { touch on; exit 75; }")
    assert status == 0 and "job mine moves" in said


def test_processes_of_a_job_whose_exec_is_in_a_container_are_left_to_it(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number means another process here."""
    monkeypatch.setattr("runtime.commands.executing._ANOTHER_S", 0.0)
    with serving({}) as little:
        point_to(little, monkeypatch)
        marks = {"ROLLMUX_URL": little.url, "ROLLMUX_JOB": "mine", "ROLLMUX_LEASE": "its", rollmux_processes.KEEPER: "7 5 pid:[1]"}
        with Child(["sleep", "1000"], env=os.environ | marks) as inside:
            status, _, said = command("exec", str(file), "--", "true")
            assert status == 2 and f"another `rollmux exec` of it has process {inside.pid} on this machine" in said
            assert inside.poll() is None


def test_cores_that_this_machine_does_not_have_are_named(command: Command, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that a container may not use."""
    nodes = {pool: [{"name": pool, "host": socket.gethostname(), "gpus": [], "cores": [1023]}] for pool in SIDES}
    monkeypatch.setattr(little_service, "NODES", nodes)
    with serving({}) as little:
        point_to(little, monkeypatch)
        status, _, said = command("exec", str(file), "--", "true")
    assert status == 2 and "the command cannot run on the cores of its nodes, 1023: Invalid argument" in said
