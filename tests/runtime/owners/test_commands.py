"""Commands in job files: the service starts them, they attach themselves, and are started again after a death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import Conflict
from rollmux_env.scheduler.facts import Lost
from runtime.coordinator.consequences import Consequences
from runtime.jobs.spec import CommandJob
from runtime.journal.audit import audit
from runtime.journal.facts import IterationSlice, JobFailed, LeaseEnded, NodesSuspected
from runtime.journal.write import JOURNAL, read_facts
from runtime.machines import job_processes
from runtime.machines.job_processes import started
from runtime.output import LOGS, lines
from runtime.owners.http import command_process
from runtime.service.address import Listen
from runtime.service.http.listening import ListeningService
from runtime.service.tokens import Right, Tokens
from tests.children import Child
from tests.runtime.pretend import HERE, PATIENCE_S, Served, attached_plan, job, node, served, specs_of

OWNER = """
import json, os, sys, urllib.request

def ask(path, **body):
    request = urllib.request.Request(os.environ["ROLLMUX_URL"] + path, json.dumps(body).encode())
    request.add_header("Authorization", "Bearer " + os.environ["ROLLMUX_TOKEN"])
    return json.load(urllib.request.urlopen(request))

place = ask(f"/v1/jobs/{os.environ['ROLLMUX_JOB']}/attach", host=os.uname().nodename, pids=[os.getpid()])
assert place["nodes"] == json.loads(os.environ["ROLLMUX_NODES"])
print("cores", sorted(os.sched_getaffinity(0)), "from iteration", place["iteration"])
for number in range(place["iteration"], 3):
    for phase in ("rollout", "training"):
        assert ask(f"/v1/leases/{place['lease']}/acquire", phase=phase, iteration=number)["granted"]
        if (number, phase) == (1, "training") and os.path.exists(sys.argv[1]):
            os.unlink(sys.argv[1])
            os.abort()
        ask(f"/v1/leases/{place['lease']}/release", phase=phase, iteration=number, metrics={"reward": 0.5})
"""


SAVES = """
import os, sys, time
import rollmux_client

with rollmux_client.attach() as job:
    for number in job.iterations():
        for name in ("rollout", "training"):
            with job.phase(name):
                pass
if os.path.exists(sys.argv[1]):
    os.unlink(sys.argv[1])
    raise SystemExit(3)
time.sleep(0.5)
print("saved")
"""
LEAVES = """
import os, subprocess, sys, time
if os.path.exists("pid"):
    sys.exit()
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
with open("pid", "w") as file:
    file.write(f"{subprocess.Popen(['env', '-i', 'sleep', '600'], **quiet).pid}")
while not os.path.exists("seen"):
    time.sleep(0.02)
os.kill(os.getpid(), 9)
"""

_LARGE = {"worst_case_s": 10.0, "host_memory_gb": 7.5}
LARGE: dict[str, Any] = {"rollout": _LARGE, "training": _LARGE}  # two such jobs share no node


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_processes, "_GRACE_S", 0.3)
    monkeypatch.setattr(job_processes, "_LOOKS", 2)


def command(job_id: str, *words: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in job(job_id, **more).items() if key != "attach"} | {"command": [sys.executable, *words]}


def test_a_command_is_started_pinned_to_its_nodes_and_again_after_a_death(tmp_path: Path) -> None:
    once, unsaved = tmp_path / "once", tmp_path / "unsaved"
    once.touch()
    unsaved.touch()

    async def main() -> None:
        service = ListeningService(attached_plan(tmp_path))
        await service.serve(None)
        await service.listen(Listen())
        await service.give_access(Tokens(tmp_path).make("", Right.OPERATE))
        owners = command("a", "-c", OWNER, str(once)), command("b", "-c", OWNER, str(tmp_path / "none"))
        await service.submit(specs_of(*owners, command("c", "-c", SAVES, str(unsaved))))
        while {(await service.job(name))["state"] for name in "abc"} != {"done"}:
            await asyncio.sleep(0.05)
        await service.stop()
        await service.ended()

    asyncio.run(main())
    facts = read_facts(tmp_path / JOURNAL)
    assert audit(facts).problems == ()
    for name in ("a", "b", "c"):
        assert [fact.number for fact in facts if isinstance(fact, IterationSlice) and fact.job_id == name] == [0, 1, 2]
    why = [fact.why for fact in facts if isinstance(fact, LeaseEnded) and fact.job_id == "a"]
    assert why == ["its command was ended by SIGABRT", "its owner says that the job is done"]
    says = "its owner says that the job is done"
    ends = [(fact.why, fact.done) for fact in facts if isinstance(fact, LeaseEnded) and fact.job_id == "c"]
    assert ends == [(says, False), (says, False), ("its command has ended with status 0", True)]
    assert "saved" in {line.partition("| ")[2] for line in lines(tmp_path / LOGS / "c")}
    log = [line.partition("| ")[2] for line in lines(tmp_path / LOGS / "a")]
    assert [line for line in log if line.startswith("cores")] == ["cores [0] from iteration 0", "cores [0] from iteration 1"]


def test_a_command_that_ends_well_is_done_and_one_that_keeps_failing_is_given_up(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        run.driver.commands.give_access(lambda _: {})
        handles = run.driver.run.handles
        while not all(handle.life.is_gone for handle in handles.values()):
            await asyncio.sleep(0.05)
        await run.stop()

    jobs = (command("well", "-c", "pass"), command("ill", "-c", "raise SystemExit(3)"), command("none", "a\0b"))
    served(work, attached_plan(tmp_path, *jobs))
    facts = read_facts(tmp_path / JOURNAL)
    assert [(fact.job_id, fact.done) for fact in facts if isinstance(fact, LeaseEnded)] == [("well", True)]
    failed = {fact.job_id: fact.problem for fact in facts if isinstance(fact, JobFailed)}
    assert failed == {
        "ill": "its command has ended with status 3 (3 times in a row without an iteration done)",
        "none": "its command has ended with status 127 (3 times in a row without an iteration done)",
    }


def test_the_log_of_a_job_says_why_its_command_cannot_be_started(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        run.driver.commands.give_access(lambda _: {})
        while not all(handle.life.is_gone for handle in run.driver.run.handles.values()):
            await asyncio.sleep(0.05)
        await run.stop()

    lost = command("lost", "-c", "pass", folder=str(tmp_path / "gone"))
    (tmp_path / "run").mkdir()
    served(work, attached_plan(tmp_path / "run", lost, command("none", "a\0b")))
    reasons = {"lost": f"{tmp_path / 'gone'}: No such file or directory", "none": "embedded null byte"}
    for name, reason in reasons.items():
        said = (tmp_path / "run" / LOGS / name / "command.log").read_text()
        assert said.count(f"  cannot be started: {reason}\n") == 3, said


def test_a_command_gets_named_variables_of_the_environment_of_its_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    (tmp_path / "run").mkdir()

    async def work(run: Served) -> None:
        run.driver.commands.give_access(lambda _: {"ROLLMUX_URL": "http://127.0.0.1:1"})
        while not all(handle.life.is_gone for handle in run.driver.run.handles.values()):
            await asyncio.sleep(0.02)
        await run.stop()

    writes = "import json, os; json.dump(dict(os.environ), open('environment.json', 'w'))"
    served(work, attached_plan(tmp_path / "run", command("a", "-c", writes, folder=str(tmp_path))))
    found = json.loads((tmp_path / "environment.json").read_text())
    assert "SOME_API_KEY" not in found
    assert {"PATH", "LC_TIME", "ROLLMUX_URL", "ROLLMUX_JOB", "ROLLMUX_NODES", "CUDA_VISIBLE_DEVICES"} <= found.keys()
    assert found["LC_TIME"] == "C" and found["PATH"] == os.environ["PATH"]


def test_a_cancelled_command_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    child = "import os, subprocess, sys; p = subprocess.Popen(['sleep', '600']); open('pid', 'w').write(f'{p.pid}\\n'); p.wait()"

    async def work(run: Served) -> int:
        run.driver.commands.give_access(lambda _: {})
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
            await asyncio.sleep(0.02)
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        await run.driver.run.handles["a"].ending.cleared.wait()
        await run.stop()
        return int((tmp_path / "pid").read_text())

    (tmp_path / "run").mkdir()
    pid = served(work, attached_plan(tmp_path / "run", command("a", "-c", child, folder=str(tmp_path))))
    assert not started(pid)


def test_what_a_killed_command_leaves_ends_before_its_nodes_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has another session, no environment and no log; it was seen while its parent lived."""
    find = command_process.CommandProcess._find

    def look(process: command_process.CommandProcess) -> None:
        lives = (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()
        find(process)
        if lives:
            (tmp_path / "seen").touch()

    monkeypatch.setattr(command_process, "_FINDS_S", 0.0)
    monkeypatch.setattr(command_process.CommandProcess, "_find", look)

    async def work(run: Served) -> None:
        run.driver.commands.give_access(lambda _: {})
        while not run.driver.run.handles["a"].life.is_gone:
            await asyncio.sleep(0.02)
        await run.stop()

    (tmp_path / "run").mkdir()
    served(work, attached_plan(tmp_path / "run", command("a", "-c", LEAVES, folder=str(tmp_path))))
    assert not started(int((tmp_path / "pid").read_text()))


def test_nodes_of_a_command_stay_its_own_while_a_process_of_it_cannot_be_ended(tmp_path: Path) -> None:
    """Its owner has named it, and nothing tells that it belongs to the command."""

    async def work(run: Served, pid: int) -> None:
        ledger, handle = run.leases.ledger, run.driver.run.handles["a"]
        run.driver.commands.give_access(lambda _: {})
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.02)
        lease = await run.place("a", pids=(pid,))
        (tmp_path / "end").touch()
        while not ledger.suspect_nodes():
            await asyncio.sleep(0.02)
        assert ledger.suspect_nodes() == dict.fromkeys(("rollout-0", "training-0"), "a")
        assert (await run.leases.heartbeat(lease))["lost"] == (
            f"its command was ended by SIGKILL; process {pid} of it cannot be ended"
        )
        await run.settle()
        assert handle.place.nodes
        os.kill(pid, 9)
        while started(pid):
            await asyncio.sleep(0.02)
        run.pass_time(1.0)
        assert not ledger.suspect_nodes()
        (tmp_path / "well").touch()
        while not handle.life.is_gone:
            await asyncio.sleep(0.02)
        await run.stop()

    (tmp_path / "run").mkdir()
    waits = "import os, time; open('pid', 'w')\nwhile not os.path.exists('end'): time.sleep(0.02)\n"
    ends = "os.path.exists('well') or os.kill(os.getpid(), 9)"
    plan = attached_plan(tmp_path / "run", command("a", "-c", waits + ends, folder=str(tmp_path)))
    with Child(["env", "-i", "sleep", "600"]) as child:
        served(lambda run: work(run, child.pid), plan)


def shell(job_id: str, script: str, **more: Any) -> dict[str, Any]:
    return command(job_id, **more) | {"command": ["sh", "-c", script]}


async def pid_in(path: Path) -> int:
    """The id that a command has written to a file."""
    while not path.exists() or not path.read_text().endswith("\n"):
        await asyncio.sleep(0.01)
    return int(path.read_text())


def test_nodes_of_a_command_whose_budget_is_spent_are_granted_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_process, "_ENDS_S", 0.4)

    async def work(run: Served) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        lease = await run.place("a", pids=(await pid_in(tmp_path / "a"),))
        await run.iterate(lease, 0)
        assert await run.leases.heartbeat(lease) == {"stop": True}
        while not run.driver.run.handles["b"].life.is_gone:
            await asyncio.sleep(0.02)
        return await run.stop()

    (tmp_path / "run").mkdir()
    more: dict[str, Any] = {"folder": str(tmp_path), **LARGE}
    first = shell("a", "trap '' TERM; echo $$ > a; exec sleep 600", budget={"hours": 1e-9}, **more)
    second = shell("b", "if kill -0 $(cat a); then touch both; fi", **more)
    facts = served(work, attached_plan(tmp_path / "run", first, second))
    assert not (tmp_path / "both").exists()
    assert audit(facts).jobs == {"a": "over_budget", "b": "done"}


def test_a_command_whose_budget_is_spent_does_not_arrive_again_if_its_node_is_lost_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_process, "_ENDS_S", 0.1)

    async def work(run: Served) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        lease = await run.place("a", pids=(await pid_in(tmp_path / "a"),))
        await run.iterate(lease, 0)
        assert await run.leases.heartbeat(lease) == {"stop": True}
        run.driver.run.apply(Consequences((Lost(frozenset({"rollout-0"})),)))
        while not run.driver.run.handles["a"].life.is_gone and not run.driver.run.scheduler.state.waiting:
            await asyncio.sleep(0.01)
        assert not run.driver.run.scheduler.state.waiting and not run.driver.run.scheduler.members.seats
        return await run.stop()

    (tmp_path / "run").mkdir()
    ignores = shell("a", "trap '' TERM; echo $$ > a; exec sleep 600", folder=str(tmp_path), budget={"hours": 1e-9})
    facts = served(work, attached_plan(tmp_path / "run", ignores))
    assert audit(facts).jobs == {"a": "over_budget"}


def test_a_command_that_hangs_after_it_has_given_its_lease_back_is_ended_and_started_again(tmp_path: Path) -> None:
    async def work(run: Served) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        pid = await pid_in(tmp_path / "a")
        lease = await run.place("a", pids=(pid,))
        for number in range(3):
            await run.iterate(lease, number)
        await run.leases.end(lease, done=True)
        run.pass_time(299.0)
        await run.settle()
        assert started(pid) and not run.leases.ledger.suspect_nodes()
        run.pass_time(2.0)
        while not run.driver.run.handles["a"].life.is_gone:
            await asyncio.sleep(0.02)
        assert not started(pid)
        line = "a: its command has given its lease back, and has neither ended nor attached again for 300 s"
        assert any(line in other for other in run.driver.run.log.lines(0))
        return await run.stop()

    (tmp_path / "run").mkdir()
    hangs = shell("a", "if test -e a; then exit; fi; echo $$ > a; exec sleep 600", folder=str(tmp_path))
    facts = served(work, attached_plan(tmp_path / "run", hangs))
    assert [fact.nodes for fact in facts if isinstance(fact, NodesSuspected)] == [("rollout-0", "training-0")]
    assert audit(facts).jobs == {"a": "done"}


def test_the_exit_status_decides_also_where_a_command_says_that_it_is_done_within_a_phase(tmp_path: Path) -> None:
    pid_file, ends = tmp_path / "a", tmp_path / "end"

    async def leaves(run: Served, holds: bool) -> None:
        """The script gives its lease back in the second iteration, while its process goes on."""
        pid = await pid_in(pid_file)
        handle = run.driver.run.handles["a"]
        lease, other = await run.place("a", pids=(pid,)), await run.place("b")
        if holds:
            await run.iterate(lease, 0)
        else:
            assert (await run.leases.acquire(other, "rollout", 0, 60.0))["granted"]
        assert (await run.leases.acquire(lease, "rollout", 1, 0.0))["granted"] == holds
        await run.leases.end(lease, done=True)
        if holds:
            with pytest.raises(Conflict, match="has to end first"):
                await run.leases.attach("a", 0.0, HERE, (pid,))
        else:
            await run.leases.release(other, "rollout", 0)
        await run.leases.end(other)
        await run.settle()
        assert started(pid) and not handle.life.is_gone and bool(handle.permits.holds) == holds
        pid_file.unlink()
        ends.touch()

    async def work(run: Served) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        await leaves(run, holds=True)
        await leaves(run, holds=False)
        while not run.driver.run.handles["a"].life.is_gone:
            await asyncio.sleep(0.02)
        return await run.stop(permits=False)

    (tmp_path / "run").mkdir()
    waits = "echo $$ > a; until test -e end; do sleep 0.02; done; rm end; test -e once && exit; touch once; exit 1"
    jobs = shell("a", waits, folder=str(tmp_path)), job("b")
    facts = served(work, attached_plan(tmp_path / "run", *jobs))
    assert audit(facts).jobs == {"a": "done", "b": "present"}
    ends_of_a = [(fact.why, fact.done) for fact in facts if isinstance(fact, LeaseEnded) and fact.job_id == "a"]
    says = "its owner says that the job is done"
    assert ends_of_a == [(says, False), (says, False), ("its command has ended with status 0", True)]


@pytest.mark.parametrize("dispatch", ("fifo", "round-robin"))
def test_a_command_that_says_that_it_is_done_within_an_iteration_keeps_no_node_from_others(tmp_path: Path, dispatch: str) -> None:
    """It has asked for its training, or comes before the other job on their nodes."""

    async def work(run: Served) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        pid = await pid_in(tmp_path / "a")
        lease, other = await run.place("a", pids=(pid,)), await run.place("b")
        await run.phase(lease, "rollout", 0)
        if dispatch == "fifo":
            await run.phase(other, "rollout", 0)
            assert (await run.leases.acquire(other, "training", 0, 60.0))["granted"]
            assert not (await run.leases.acquire(lease, "training", 0, 0.0))["granted"]
        await run.leases.end(lease, done=True)
        if dispatch == "fifo":
            await run.leases.release(other, "training", 0)
        else:
            await run.iterate(other, 0)
        await run.iterate(other, 1)
        lease = await run.place("a", pids=(pid,))  # it does its iteration again
        await run.iterate(lease, 0)
        await run.iterate(other, 2)
        await run.leases.end(lease, done=True)
        (tmp_path / "end").touch()
        while not run.driver.run.handles["a"].life.is_gone:
            await asyncio.sleep(0.02)
        return await run.stop()

    (tmp_path / "run").mkdir()
    jobs = shell("a", "echo $$ > a; until test -e end; do sleep 0.02; done", folder=str(tmp_path)), job("b")
    facts = served(work, attached_plan(tmp_path / "run", *jobs, dispatch=dispatch))
    assert audit(facts).jobs == {"a": "done", "b": "present"}
    assert [fact.number for fact in facts if isinstance(fact, IterationSlice) and fact.job_id == "a"] == [0]


def test_a_command_that_says_that_it_is_done_within_a_rollout_does_not_get_the_training_that_it_asked_for(tmp_path: Path) -> None:
    async def work(run: Served) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        lease, other = await run.place("a", pids=(await pid_in(tmp_path / "a"),)), await run.place("b")
        await run.phase(other, "rollout", 0)
        assert (await run.leases.acquire(other, "training", 0, 60.0))["granted"]
        await run.phase(lease, "rollout", 0)
        assert (await run.leases.acquire(lease, "rollout", 1, 60.0))["granted"]
        assert not (await run.leases.acquire(lease, "training", 0, 0.0))["granted"]
        await run.leases.end(lease, done=True)
        await run.leases.release(other, "training", 0)
        assert run.driver.run.handles["a"].permits.holds.keys() == {"rollout"}
        (tmp_path / "end").touch()
        await run.iterate(other, 1)
        return await run.stop()

    (tmp_path / "run").mkdir()
    waits = "echo $$ > a; until test -e end; do sleep 0.02; done"
    jobs = shell("a", waits, folder=str(tmp_path), staleness=1), job("b", staleness=1)
    facts = served(work, attached_plan(tmp_path / "run", *jobs, policy="rollmux,prune=false"))
    assert audit(facts).jobs == {"a": "done", "b": "present"}


def test_a_command_that_ends_well_is_done_while_a_process_of_it_cannot_be_ended(tmp_path: Path) -> None:
    async def work(run: Served, pid: int) -> list[Any]:
        ledger, handle = run.leases.ledger, run.driver.run.handles["a"]
        run.driver.commands.give_access(lambda _: {})
        await run.place("a", pids=(await pid_in(tmp_path / "a"), pid))
        (tmp_path / "end").touch()
        while not ledger.suspect_nodes():
            await asyncio.sleep(0.02)
        await run.settle()
        assert ledger.suspect_nodes() == dict.fromkeys(("rollout-0", "training-0"), "a")
        assert any(line.endswith("a: done after 0 iterations") for line in run.driver.run.log.lines(0))
        assert handle.place.nodes and not handle.life.is_gone
        os.kill(pid, 9)
        while not handle.life.is_gone:
            run.pass_time(1.0)
            await asyncio.sleep(0.02)
        assert not ledger.suspect_nodes()
        return await run.stop()

    (tmp_path / "run").mkdir()
    waits = "echo $$ >> a; until test -e end; do sleep 0.02; done"
    with Child(["env", "-i", "sleep", "600"]) as child:
        facts = served(lambda run: work(run, child.pid), attached_plan(tmp_path / "run", shell("a", waits, folder=str(tmp_path))))
    assert audit(facts).jobs == {"a": "done"}
    assert (tmp_path / "a").read_text().count("\n") == 1


@pytest.mark.parametrize("attaches", (True, False))
def test_a_cancelled_command_whose_service_is_killed_meanwhile_is_ended_before_its_nodes_are_free(
    tmp_path: Path, attaches: bool
) -> None:
    async def work(run: Served) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        pid = await pid_in(tmp_path / "a")
        if attaches:
            await run.place("a", pids=(pid,))
        handle = run.driver.run.handles["a"]
        child = run.driver.commands._commands[handle]._child  # which the killed service does not reap
        await run.driver.lifecycle.cancel(handle)
        await run.settle()
        run = await run.replaced()
        run.driver.commands.give_access(lambda _: {})
        assert started(pid) and run.driver.run.scheduler.state.waiting
        await run.place("b")
        assert not started(pid) and run.driver.run.handles["a"].life.is_gone
        assert child is not None and child.wait() == -9
        return await run.stop(resumed=True)

    (tmp_path / "run").mkdir()
    ignores = shell("a", "trap '' TERM; echo $$ > a; exec sleep 600", folder=str(tmp_path), **LARGE)
    facts = served(work, attached_plan(tmp_path / "run", ignores, job("b", **LARGE)))
    assert audit(facts).jobs == {"a": "cancelled", "b": "present"}


def test_a_done_command_whose_process_lives_stops_no_grant_of_a_continued_service(tmp_path: Path) -> None:
    async def work(run: Served, pid: int) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        await run.place("a", pids=(await pid_in(tmp_path / "a"), pid))
        (tmp_path / "end").touch()
        while not run.leases.ledger.suspect_nodes():
            await asyncio.sleep(0.02)
        await run.settle()
        run = await run.replaced()
        run.driver.commands.give_access(lambda _: {})
        handle = run.driver.run.handles["a"]
        await run.settle()
        assert run.leases.ledger.suspect_nodes() == dict.fromkeys(("rollout-0", "training-0"), "a")
        assert not run.driver.run.scheduler.members.stopped and not handle.life.is_gone
        lease = await run.place("b")
        await run.iterate(lease, 0)
        os.kill(pid, 9)
        while not handle.life.is_gone:
            run.pass_time(1.0)
            await asyncio.sleep(0.02)
        assert not run.leases.ledger.suspect_nodes()
        return await run.stop(resumed=True)

    (tmp_path / "run").mkdir()
    waits = "echo $$ >> a; until test -e end; do sleep 0.02; done"
    nodes = tuple(node(f"{pool}-{number}") for pool in ("rollout", "training") for number in range(2))
    jobs = shell("a", waits, folder=str(tmp_path), **LARGE), job("b", **LARGE)
    with Child(["env", "-i", "sleep", "600"]) as child:
        facts = served(lambda run: work(run, child.pid), attached_plan(tmp_path / "run", *jobs, nodes=nodes))
    assert audit(facts).jobs == {"a": "done", "b": "present"}
    assert (tmp_path / "a").read_text().count("\n") == 1


def test_nodes_of_a_phase_within_which_a_command_gave_its_lease_back_are_granted_after_a_restart_once_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_process, "_ENDS_S", 0.4)

    async def work(run: Served) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        pid = await pid_in(tmp_path / "a")
        lease, other = await run.place("a", pids=(pid,)), await run.place("b")
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        await run.leases.end(lease, done=True)
        child = run.driver.commands._commands[run.driver.run.handles["a"]]._child  # which the killed service does not reap
        run = await run.replaced()
        asks = asyncio.ensure_future(run.leases.acquire(other, "rollout", 0, PATIENCE_S))
        await run.settle()
        assert started(pid) and not asks.done()
        run.driver.commands.give_access(lambda _: {})
        assert (await asks)["granted"] and not started(pid)
        assert child is not None and child.wait() == -9
        await run.leases.release(other, "rollout", 0)
        await run.leases.end(other)
        while not run.driver.run.handles["a"].life.is_gone:
            await asyncio.sleep(0.02)
        return await run.stop(resumed=True)

    (tmp_path / "run").mkdir()
    script = "if test -e a; then exit; fi; trap '' TERM; echo $$ > a; exec sleep 600"
    jobs = shell("a", script, folder=str(tmp_path)), job("b")
    facts = served(work, attached_plan(tmp_path / "run", *jobs))
    assert audit(facts).jobs == {"a": "done", "b": "present"}


def test_a_command_that_no_signal_ends_is_named_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver of its device hangs, or it is sudo, which belongs to another user."""

    def refuse(*_: int) -> None:
        raise PermissionError

    async def main() -> None:
        (spec,) = specs_of(command("a", "-c", "import time; time.sleep(600)"))
        assert isinstance(spec, CommandJob)
        process = command_process.CommandProcess(tmp_path / LOGS / "a")
        process.start(spec, [], {})
        child = process._child
        assert child is not None
        with monkeypatch.context() as without:
            without.setattr(os, "killpg", refuse)
            without.setattr(os, "kill", refuse)
            assert await asyncio.wait_for(process.end(), PATIENCE_S) == [child.pid]
        assert await process.end() == [] and child.returncode == -signal.SIGTERM

    monkeypatch.setattr(command_process, "_ENDS_S", 0.2)
    monkeypatch.setattr(job_processes, "_MOST_S", 0.2)
    asyncio.run(main())


def test_a_command_is_not_started_beside_one_of_the_former_service_that_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = os.kill
    monkeypatch.setattr(job_processes, "_MOST_S", 0.2)

    async def work(run: Served) -> None:
        run.driver.commands.give_access(lambda _: {})
        pid = await pid_in(tmp_path / "a")
        child = run.driver.commands._commands[run.driver.run.handles["a"]]._child
        assert child is not None
        monkeypatch.setattr(os, "kill", lambda one, number: None if one == pid else kill(one, number))
        run = await run.replaced()
        run.driver.commands.give_access(lambda _: {})
        ledger = run.leases.ledger
        while not ledger.suspect_nodes() and (tmp_path / "a").read_text().count("\n") == 1:
            await asyncio.sleep(0.02)
        assert ledger.suspect_nodes() == dict.fromkeys(("rollout-0", "training-0"), "a")
        monkeypatch.undo()
        kill(pid, 9)
        child.wait()
        while (tmp_path / "a").read_text().count("\n") == 1:  # it is started again when the nodes are free
            run.pass_time(1.0)
            await asyncio.sleep(0.02)
        await run.stop(resumed=True)

    (tmp_path / "run").mkdir()
    served(work, attached_plan(tmp_path / "run", shell("a", "echo $$ >> a; exec sleep 600", folder=str(tmp_path))))


@pytest.mark.parametrize("how", ("the service stops", "the service is killed", "the next service has it"))
def test_a_job_whose_command_ends_with_its_service_or_unseen_waits_before_those_that_came_later(how: str, tmp_path: Path) -> None:
    async def work(run: Served) -> list[Any]:
        run.driver.commands.give_access(lambda _: {})
        pid = await pid_in(tmp_path / "a")
        await run.place("a", pids=(pid,))
        child = run.driver.commands._commands[run.driver.run.handles["a"]]._child
        assert child is not None and run.driver.run.scheduler.state.waiting == ["b", "c"]
        if how == "the service stops":
            run.driver.stop()
            assert await run.outcome == "stopped"
            run = Served(replace(run.plan, resume=True))
            await run.settle()
        else:
            run = await run.replaced()
        if how == "the next service has it":
            run.driver.commands.give_access(lambda _: {})
            await run.settle()
        child.kill()
        child.wait()
        run.driver.commands.give_access(lambda _: {})
        lease = await run.place("b")
        assert run.driver.run.scheduler.state.waiting == ["a", "c"] and not run.driver.run.handles["a"].ending.deaths
        await run.leases.end(lease, done=True)
        while not run.driver.run.handles["a"].life.is_gone:
            await asyncio.sleep(0.02)
        return await run.stop(resumed=True)

    (tmp_path / "run").mkdir()
    command = shell("a", "test -e a && exit; echo $$ > a; exec sleep 600", folder=str(tmp_path), **LARGE)
    facts = served(work, attached_plan(tmp_path / "run", command, *(job(name, **LARGE) for name in "bc")))
    assert audit(facts).jobs == {"a": "done", "b": "done", "c": "present"}
