"""The client against a service of leases: turns, what is repeated, what is given back, and what it is without a service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rollmux_client
import rollmux_processes

from tests.children import Child
from tests.clients.little_service import TOKEN, LittleService, Turn, serving


def iterate(job: rollmux_client.Job) -> None:
    for k in job.iterations():
        with job.phase("rollout") as phase:
            phase.report(reward=float(k), loss=float("nan"))
        with job.phase("training"):
            pass


def iterate_once(job: rollmux_client.Job) -> None:
    for phase in ("rollout", "training"):
        with job.phase(phase):
            pass


def test_a_script_runs_the_same_without_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLMUX_URL", raising=False)
    done = []
    with rollmux_client.attach() as job:
        for k in job.iterations(2):
            with job.phase("rollout") as phase:
                phase.report(reward=1.0)
                job.progress(1, 2, 3)
            with job.phase("training"):
                done.append(k)
            job.synced(0.1)
    assert done == [0, 1]


def test_an_owner_learns_by_when_its_nodes_are_taken_away(service: LittleService, caplog: pytest.LogCaptureFixture) -> None:
    service.leave_by_s = 2e9
    with rollmux_client.attach() as job:  # which sends a heartbeat
        assert job.leave_by_s == 2e9
        service.leave_by_s = None
        job._ask("heartbeat", {})  # noqa: SLF001 (as its thread does)
        assert job.leave_by_s is None
        iterate(job)
    (line,) = [record.getMessage() for record in caplog.records if "taken away" in record.getMessage()]
    assert line.startswith("job one: one of its nodes is taken away at 2033-05-1")


def test_phases_are_asked_for_and_given_back_in_order(service: LittleService) -> None:
    with rollmux_client.attach() as job:
        assert job.nodes["rollout"][0]["name"] == "rollout-0"
        iterate(job)
    assert service.granted == [Turn("one", phase, k, False) for k in range(3) for phase in ("rollout", "training")]
    released = [body for name, body in service.requests if name == "release"]
    assert [body["metrics"] for body in released if body["phase"] == "rollout"] == [
        {"reward": 0.0},
        {"reward": 1.0},
        {"reward": 2.0},
    ]
    assert service.jobs["one"].state == "done" and not service.held


def test_a_process_with_an_older_checkpoint_does_again_what_was_counted_since(
    service: LittleService, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError), rollmux_client.attach() as job:
        for k in job.iterations():
            if k == 2:
                raise RuntimeError
            iterate_once(job)
    with rollmux_client.attach() as job:
        with job.init():
            pass
        job.continue_from(1)
        assert [*job.iterations()] == [1, 2]
    assert "continues after 1 of the 2 iterations that were counted: 2 is done again" in caplog.text


def test_a_process_that_has_one_more_than_was_counted_has_its_turns_again(service: LittleService) -> None:
    """It was ended between its checkpoint and the end of the phase."""
    with rollmux_client.attach() as job:
        job.continue_from(1)
        assert [*job.iterations()] == [1, 2]
    assert service.granted == [Turn("one", phase, 0, False) for phase in ("rollout", "training")]


def test_what_process_and_service_do_not_agree_about_is_one_line(service: LittleService, capfd: pytest.CaptureFixture[str]) -> None:
    script = "import rollmux_client\nwith rollmux_client.attach() as job:\n    "
    for line, said in (
        ("job.continue_from(3)", "has done 3 iterations, and the service has counted 0: continue from an older checkpoint"),
        ("job.check_total(4)", "job one: its entry says iterations: 3, and this process does 4: make them the same"),
        ("[*job.iterations(4)]", "job one: its entry says iterations: 3, and this process does 4: make them the same"),
    ):
        words = [sys.executable, "-c", script + line]
        environment = os.environ | {"PYTHONPATH": str(Path(rollmux_client.__file__).parent)}
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 1 and said in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert not service.granted and service.jobs["one"].state == "queued"


def test_an_older_service_is_told_apart_and_all_else_goes_on_with_it(service: LittleService) -> None:
    service.is_older = True
    with rollmux_client.attach() as job:
        with job.init():
            job.add_processes([os.getpid()])
        with job.phase("rollout") as phase:
            phase.report(reward=1.0)
            phase.device_gb = 1.0
            job.progress(1, 2, 3)
        for name in ("training", "sync"):
            with job.phase(name):
                pass
    service.jobs["one"].state = "queued"
    with rollmux_client.attach() as job, pytest.raises(rollmux_client.Mismatch, match="takes none back: upgrade the service"):
        job.continue_from(0)


def test_processes_that_are_added_during_a_search_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = rollmux_processes.LeaseProcesses()
    with Child(["sleep", "600"]) as rank:

        def carriers(*_: Any) -> set[int]:
            mine.add([rank.pid])  # in another thread
            return set()

        monkeypatch.setattr(rollmux_processes, "carriers", carriers)
        table = rollmux_processes.processes()
        mine.find(table)
        found = mine.find(table)
    assert found == {rank.pid}


def test_a_script_that_starts_again_after_the_last_iteration_evaluates_what_it_has_done(service: LittleService) -> None:
    service.jobs["one"].iteration = 3
    with rollmux_client.attach() as job:
        assert [*job.iterations()] == []
        assert job.iteration == 3
        with job.phase("rollout", extra=True):
            pass
    assert service.granted == [("one", "rollout", 3, True)]


def test_two_jobs_take_turns(service: LittleService) -> None:
    inside, most = [0], [0]

    def run(name: str) -> None:
        with rollmux_client.attach(name) as job:
            for _ in job.iterations(3):
                with job.phase("rollout"):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    inside[0] -= 1
                with job.phase("training"):
                    pass

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert {job.state for job in service.jobs.values()} == {"done"}


def test_an_answer_that_got_lost_is_asked_for_again_and_counts_once(service: LittleService) -> None:
    with rollmux_client.attach() as job:
        for _ in job.iterations(3):
            for name in ("rollout", "training"):
                service.lost_answers = 2
                with job.phase(name):
                    service.lost_answers = 2
    assert [(turn.phase, turn.iteration) for turn in service.granted] == [(p, k) for k in range(3) for p in ("rollout", "training")]


def test_a_phase_that_fails_is_not_over_and_the_next_process_goes_on_with_it(service: LittleService) -> None:
    with pytest.raises(ZeroDivisionError), rollmux_client.attach() as job:
        for k in job.iterations():
            with job.phase("rollout"):
                assert 1 / (1 - k)
            with job.phase("training"):
                pass
    assert service.jobs["one"].state == "queued" and not service.held
    with rollmux_client.attach() as job:
        assert [*job.iterations()] == [1, 2]


def test_an_evaluation_waits_for_its_turn_and_counts_no_iteration(service: LittleService) -> None:
    with rollmux_client.attach() as job:
        with job.phase("rollout", extra=True), pytest.raises(rollmux_client.Refused, match="release what is held"):
            job.acquire(job.phase("rollout"))
        for _ in job.iterations(1):
            with job.phase("rollout"):
                pass
            with job.phase("training"):
                pass
        with job.phase("rollout", extra=True):
            pass
    assert [turn.extra for turn in service.granted] == [True, False, False, True]


def test_a_sync_has_both_sides_at_once_and_ends_the_iteration(service: LittleService) -> None:
    with rollmux_client.attach() as job:
        for _ in job.iterations(1):
            with job.phase("rollout"):
                pass
            with job.phase("training"):
                pass
            with job.phase("sync"):
                assert {*service.held} == {"rollout", "training"}
    ends = [(name, body["iteration"]) for name, body in service.requests if name in ("release", "synced")]
    assert ends == [("release", 0), ("release", 0), ("release", 0), ("synced", 0)]
    with rollmux_client.attach("other") as job:
        job.synced(0.5)
    assert ("synced", {"iteration": 0, "seconds": 0.5}) in service.requests


def test_progress_is_sent_beside_the_rollout(service: LittleService) -> None:
    with rollmux_client.attach() as job, job.phase("rollout"):
        job.progress(3, 8, 100)
        while not any(name == "progress" for name, _ in service.requests):
            threading.Event().wait(0.01)
    assert ("progress", {"done": 3, "total": 8, "tokens": 100}) in service.requests


def test_a_job_that_is_asked_to_stop_ends_between_phases_and_can_go_on(service: LittleService) -> None:
    with pytest.raises(rollmux_client.Interrupted) as ended, rollmux_client.attach() as job:
        for k in job.iterations():
            with job.phase("rollout"):
                if k == 1:
                    service.stop = True
                    job.progress(1, 1, 1)
                    while not job.stopping:
                        threading.Event().wait(0.01)
                        job._wake.set()  # noqa: SLF001 (the next heartbeat is some seconds off)
                        job._once("heartbeat", {"pids": []}, 1.0)  # noqa: SLF001
            with job.phase("training"):
                pass
    assert (ended.value.reason, ended.value.code) == ("stop", 75)
    assert service.granted[-1] == Turn("one", "rollout", 1, False) and service.jobs["one"].state == "queued"


def test_a_job_whose_phase_counts_for_nothing_ends_with_it(service: LittleService) -> None:
    """Its service has given it up; a script whose last phase it was would end well else."""
    with pytest.raises(rollmux_client.Interrupted) as ended, rollmux_client.attach() as job:
        for _ in job.iterations(1):
            with job.phase("rollout"):
                service.held.clear()
                service.stop = True
    assert ended.value.reason == "stop" and service.jobs["one"].state == "queued"


def test_a_move_ends_the_process_or_attaches_anew(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.move = True
    with pytest.raises(rollmux_client.Interrupted, match="75") as ended, rollmux_client.attach() as job, job.phase("rollout"):
        pass
    assert ended.value.reason == "move"
    leases = []

    def bring(job: rollmux_client.Job) -> None:
        leases.append(job.lease)
        service.move = False

    with rollmux_client.attach(moved=bring) as job, job.phase("rollout"):
        assert leases == [job.lease]
    assert [turn.phase for turn in service.granted] == ["rollout"]


def test_the_lease_of_another_process_is_used_and_left_to_it(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        launcher = rollmux_client.attach()
        launcher.attach()  # as `rollmux exec` does, without a mark for its own children
        stack.callback(launcher.end, done=True)
        monkeypatch.setenv("ROLLMUX_LEASE", str(launcher.lease))
        monkeypatch.setenv("ROLLMUX_NODES", '{"rollout": [{"name": "here"}]}')
        with rollmux_client.attach() as job:
            assert (job.lease, job.nodes) == (launcher.lease, {"rollout": [{"name": "here"}]})
            iterate(job)
        with rollmux_client.attach() as job:  # another process of the same command, with the same environment
            assert job.iteration == 2
        assert service.jobs["one"].state == "running"
    assert service.jobs["one"].state == "done"


def test_another_job_than_that_of_exec_is_refused(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take its turns with the lease of the other one."""
    monkeypatch.setenv("ROLLMUX_LEASE", "that of one")
    with pytest.raises(ValueError, match="job other: this process runs under `rollmux exec`, which has the lease of job one"):
        rollmux_client.attach("other")
    monkeypatch.setenv("ROLLMUX_ATTACHED", "that of one")  # as in a child of a script that has attached by itself
    with rollmux_client.attach("other"):
        pass


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_request_that_may_succeed_later_is_repeated(status: int, service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    """408: its body came late, as from a process that was stopped meanwhile."""
    answer, asked = service.answer, set[str]()

    def refuse_once(method: str, path: str, body: dict[str, Any]) -> Any:
        kind = method + path.rpartition("/")[2].partition("?")[0]
        if kind in asked:
            return answer(method, path, body)
        asked.add(kind)
        return status, {"error": "not now"}

    monkeypatch.setattr(service, "answer", refuse_once)
    with rollmux_client.attach() as job:
        iterate(job)
    assert service.jobs["one"].state == "done" and len(asked) == 6


def test_a_lease_whose_first_heartbeat_is_refused_is_given_back(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_ask", lambda *_: (401, {"error": "the token was revoked"}))
    with pytest.raises(rollmux_client.Refused, match="the token was revoked"), rollmux_client.attach():
        pass
    assert service.jobs["one"].lease is None


def test_metrics_beyond_those_that_a_request_may_have_are_left_out(service: LittleService) -> None:
    with rollmux_client.attach() as job, job.phase("rollout") as phase:
        phase.report(**{"a" * 70_000: 1.0}, **{f"metric_{number}": 1.0 for number in range(300)})
    (release,) = [body for name, body in service.requests if name == "release"]
    assert [*release["metrics"]] == [f"metric_{number}" for number in range(256)]


def test_a_reason_whose_seconds_run_on_is_said_once(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter(("b holds rollout-0 for 62 s", "b holds rollout-0 for 71.5 s", "b holds rollout-1 for 2 s"))
    lines: list[str] = []

    def answer(*_: object) -> dict[str, object]:
        return {"placed": False, "reason": why} if (why := next(reasons, None)) else {"lease": "7"}

    asking = rollmux_client.Service(service.url, TOKEN)
    monkeypatch.setattr(asking, "ask", answer)
    monkeypatch.setattr(rollmux_client.Job, "_begin", lambda *_, **__: None)
    rollmux_client.Job(asking, "one", say=lines.append).attach()
    assert lines == [f"job one waits: b holds rollout-{node} for {seconds} s" for node, seconds in ((0, 62), (1, 2))]


def test_who_holds_the_nodes_of_a_turn_is_said_once(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter(("two has held rollout-0 for 40 s", "two has held rollout-0 for 70 s", ""))
    lines: list[str] = []

    def acquire(*_: object) -> tuple[int, dict[str, object]]:
        return 200, {"granted": False, "reason": why} if (why := next(reasons, None)) is not None else {"granted": True}

    monkeypatch.setattr(rollmux_client, "_SOON_S", 0.0)
    monkeypatch.setattr(service, "_acquire", acquire)
    with rollmux_client.Job(rollmux_client.Service(service.url, TOKEN), "one", say=lines.append) as job:
        job.acquire(job.phase("rollout"))
    assert lines == ["job one waits for its rollout: two has held rollout-0 for 40 s"]


def test_what_the_service_refuses_is_said(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(rollmux_client.Refused, match="there is no"), rollmux_client.attach("nobody"):
        pass
    with rollmux_client.attach():
        pass
    with pytest.raises(rollmux_client.Refused, match="the job is over"), rollmux_client.attach():
        pass
    monkeypatch.setenv("ROLLMUX_TOKEN", "wrong")
    with pytest.raises(rollmux_client.Refused, match="the token is wrong"), rollmux_client.attach():
        pass
    monkeypatch.delenv("ROLLMUX_TOKEN")
    with pytest.raises(ValueError, match="ROLLMUX_TOKEN"):
        rollmux_client.attach()
    monkeypatch.setenv("ROLLMUX_TOKEN", "secret")
    monkeypatch.setenv("ROLLMUX_URL", "10.0.0.1:80")
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        rollmux_client.attach()


def test_a_task_waits_without_holding_up_others(service: LittleService) -> None:
    async def run(name: str) -> None:
        async with rollmux_client.attach(name) as job:
            for _ in job.iterations(3):
                async with job.phase("rollout"):
                    await asyncio.sleep(0)
                async with job.phase("training"):
                    await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(run("one"), run("other"))

    asyncio.run(both())
    assert {job.state for job in service.jobs.values()} == {"done"} and len(service.granted) == 12


def test_a_task_that_is_asked_to_stop_ends_its_loop(service: LittleService) -> None:
    ends = []

    async def run() -> None:
        async with rollmux_client.attach() as job:
            try:
                async with job.phase("rollout"):
                    job._owner = "to stop"  # noqa: SLF001 (as a heartbeat would say)
                async with job.phase("training"):
                    raise AssertionError("it was to stop")
            finally:
                ends.append("cleaned up")

    with pytest.raises(rollmux_client.Interrupted):
        asyncio.run(run())
    assert ends == ["cleaned up"] and service.jobs["one"].state == "queued"


def test_a_placement_may_take_longer_than_a_lease_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"one": 3}, ttl_s=1.5) as little:
        attach = little._attach  # noqa: SLF001

        def take_long(job: object) -> object:
            threading.Event().wait(1.6)
            return attach(job)  # type: ignore[arg-type]

        monkeypatch.setattr(little, "_attach", take_long)
        fenced: list[str] = []
        with rollmux_client.Job(rollmux_client.Service(little.url, TOKEN), "one", fence=fenced.append) as job:
            iterate(job)
    assert fenced == [] and len(little.granted) == 6


def test_a_turn_that_comes_after_its_task_was_cancelled_is_given_back(service: LittleService) -> None:
    async def scenario() -> None:
        async with rollmux_client.attach("one") as one, rollmux_client.attach("other") as other:

            async def wait() -> None:
                async with other.phase("rollout"):
                    raise AssertionError("it was cancelled")

            async with one.phase("rollout"):
                waiting = asyncio.create_task(wait())
                while not service.waiting:
                    await asyncio.sleep(0.01)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            async with one.phase("training"):
                pass
            async with one.phase("rollout", iteration=1):  # comes when the other has given its turn back
                pass

    asyncio.run(scenario())
    assert [turn.job for turn in service.granted if turn.phase == "rollout"] == ["one", "other", "one"]


def test_a_turn_that_comes_when_its_task_is_cancelled_is_given_back(
    service: LittleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that waited for it has ended by then."""
    granted, acquire = threading.Event(), rollmux_client.Job.acquire

    def acquire_and_end(job: rollmux_client.Job, phase: rollmux_client.PhaseContext) -> None:
        acquire(job, phase)
        granted.set()

    async def scenario() -> None:
        async with rollmux_client.attach("one") as job:

            async def wait() -> None:
                async with job.phase("rollout"):
                    raise AssertionError("it was cancelled")

            monkeypatch.setattr(rollmux_client.Job, "acquire", acquire_and_end)
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            granted.wait(60)  # in the loop, which learns nothing of it meanwhile
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while service.held:
                await asyncio.sleep(0.01)
                assert job.lease is not None

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert [name for name, _ in service.requests].count("release") == 1


def test_side_by_side_trains_on_every_rollout_in_order_and_none_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLMUX_URL", raising=False)
    begun, trained, second = list[tuple[int, int]](), list[int](), threading.Event()

    def sample(k: int) -> int:
        begun.append((k, len(trained)))
        if k == 1:
            second.set()
        return 10 * k

    def train(k: int, result: int) -> None:
        assert second.wait(10) and result == 10 * k  # rollout 1 does not wait for training 0
        trained.append(k)

    syncs: list[int] = []
    with rollmux_client.attach() as job:
        job.side_by_side(sample, train, syncs.append, staleness=1, total=6)
        assert job.iteration == 6
    assert trained == syncs == [*range(6)] and [k for k, _ in begun] == [*range(6)]
    assert all(k - done <= 1 for k, done in begun)

    def breaks(k: int) -> int:
        if k == 2:
            raise ValueError("no more prompts")
        return sample(k)

    trained.clear()
    with pytest.raises(ValueError, match="no more prompts"), rollmux_client.attach() as job:
        job.side_by_side(breaks, train, staleness=1, total=6)
    assert trained == [0, 1]


@pytest.mark.parametrize("fails", ["rollout", "training"])
def test_a_phase_that_fails_ends_the_wait_for_the_one_beside_it(
    fails: str, service: LittleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found on a simulated schedule: it keeps its nodes, and nobody could ever have the turn that comes before the other one."""
    answer = service.answer

    def grant(method: str, path: str, body: dict[str, Any]) -> Any:
        if path.endswith("/acquire"):
            return 200, {"granted": body["phase"] == fails or (body["phase"], body["iteration"]) == ("rollout", 0)}
        return (200, {}) if path.endswith("/release") else answer(method, path, body)

    def sample(k: int) -> None:
        if (fails, k) == ("rollout", 1):
            raise ValueError("no more prompts")

    def train(k: int, result: None) -> None:
        raise ValueError("no more prompts")

    monkeypatch.setattr(service, "answer", grant)
    with pytest.raises(ValueError, match="no more prompts"), rollmux_client.attach() as job:
        job.side_by_side(sample, train, total=3)
    assert service.jobs["one"].state == "queued"
    assert "rollmux-rollouts" not in [thread.name for thread in threading.enumerate()]


def test_a_refusal_that_says_when_to_come_again_is_obeyed_with_some_more(
    service: LittleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    answer, refusals = service.answer, iter([(429, 3), (503, 2), (429, 10_000)])

    def refuse(method: str, path: str, body: dict[str, Any]) -> Any:
        if path.endswith("/acquire") and (refusal := next(refusals, None)) is not None:
            service.retry_after = str(refusal[1])
            return refusal[0], {"error": "the line is full"}
        return answer(method, path, body)

    with rollmux_client.attach() as job:
        monkeypatch.setattr(service, "answer", refuse)
        monkeypatch.setattr(rollmux_client, "time", SimpleNamespace(**{**vars(time), "sleep": pauses.append}))
        with job.phase("rollout"):
            pass
        monkeypatch.undo()
    asked = [pause for pause in pauses if pause > 1.9]
    assert len(asked) == 3 and 3 <= asked[0] <= 4.5 and 2 <= asked[1] <= 3 and 10 <= asked[2] <= 15


@pytest.mark.parametrize("blank", ["\n", " ", "\r\n"])
def test_blanks_around_a_token_mean_nothing(blank: str, service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_TOKEN", f"{blank}{TOKEN}{blank}")
    monkeypatch.setenv("ROLLMUX_URL", f"{service.url}{blank}")
    with rollmux_client.attach() as job, job.phase("rollout"):
        pass


@pytest.mark.parametrize(
    ("url", "token", "variable"),
    [
        ("http://localhost:80", "rollmux_se\ncret", "ROLLMUX_TOKEN"),
        ("http://localhost:80", "rollmux_se\u2014cret", "ROLLMUX_TOKEN"),
        ("http://localhost:80", "\n", "ROLLMUX_TOKEN"),
        ("http://user:cret@localhost:80", "a", "ROLLMUX_URL"),
        ("http://localhost:80/?token=cret", "a", "ROLLMUX_URL"),
        ("http://localhost:eighty", "a", "ROLLMUX_URL"),
        ("http://[::1", "a", "ROLLMUX_URL"),
        ("http://local\nhost", "a", "ROLLMUX_URL"),
    ],
)
def test_what_is_no_token_or_url_is_named_by_its_variable_and_no_secret_is_printed(url: str, token: str, variable: str) -> None:
    with pytest.raises(ValueError, match=variable) as refused:
        rollmux_client.Service(url, token)
    assert "cret" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("location", ["https://rollmux.example.org", "/login", "https://x.org\x1b[31m", ""])
def test_a_redirect_says_which_url_to_set(location: str, service: LittleService) -> None:
    """As a proxy does on port 80."""
    service.redirect = location
    with pytest.raises(rollmux_client.Refused) as refused, rollmux_client.attach():
        pass
    said = f"{service.url} answers 301"
    if location == "https://rollmux.example.org":
        assert str(refused.value) == f"{said} to {location}: set ROLLMUX_URL={location}"
    else:
        assert str(refused.value) == f"{said}, which no service does: set ROLLMUX_URL to the URL of the service itself"


def test_an_owner_gives_up_a_service_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 10_000, 100))
    monkeypatch.setattr(rollmux_client, "_now", lambda: float(next(seconds)))
    monkeypatch.setattr(rollmux_client, "time", SimpleNamespace(**{**vars(time), "sleep": lambda _: None}))
    said: list[str] = []
    job = rollmux_client.Job(rollmux_client.Service("http://127.0.0.1:1", TOKEN), "one", say=said.append)
    with pytest.raises(ConnectionError, match=r"job one: http://127.0.0.1:1 has not answered for 600 s: "), job:
        pass
    assert len(said) == 1
    with serving({"one": 1}) as proxy:
        proxy.proxy_status = 502  # the service behind it does not answer
        job = rollmux_client.Job(rollmux_client.Service(proxy.url, TOKEN), "one", say=said.append)
        with (
            pytest.raises(ConnectionError, match=r"has not answered for 600 s: 127\.0\.0\.1: answers 502, and no service does"),
            job,
        ):
            pass
    assert len(said) == 2


def test_that_a_job_is_done_is_said_also_after_its_lease_and_else_is_an_error(
    service: LittleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ended with status 0, and the job waited for another owner, which never came."""

    said: list[str] = []

    def owner() -> rollmux_client.Job:
        return rollmux_client.Job(rollmux_client.Service(service.url, TOKEN), "one", fence=lambda why: None, say=said.append)

    monkeypatch.setattr(rollmux_client, "_UNHEARD_S", 0.0)
    with pytest.raises(rollmux_client.Refused, match="there is no /v1/leases/"), owner():
        service.jobs["one"].lease = None
    with (
        pytest.raises(ConnectionError, match=r"job one: .* could not be told for 0 s that it is done: start it again"),
        owner(),
    ):
        service.lost_answers = 1_000
    service.lost_answers, service.jobs["one"].state = 0, "queued"
    monkeypatch.setattr(rollmux_client, "_UNHEARD_S", 600.0)
    with owner():
        service.lost_answers = 3
    assert [line.partition(" s: ")[0] for line in said] == ["job one: its end is reported again for up to 600"]
    service.lost_answers, service.jobs["one"].state = 0, "queued"
    with owner() as job:
        job.ttl_s = 0.0  # its last answer is older than that
    assert service.jobs["one"].state == "done"
    service.jobs["one"].state = "queued"
    with owner():
        service.jobs["one"].lease, service.jobs["one"].state = None, "cancelled"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("gpu1", "GPU1.cluster.internal", True),
        ("gpu1.cluster.internal.", "gpu1.cluster.internal", True),
        ("gpu1", "gpu10", False),
        ("gpu1.east", "gpu1.west", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("10", "10.0.0.2", False),
        ("gpu1", "", False),
    ],
)
def test_hosts_are_the_same_by_their_short_names(one: str, other: str, same: bool) -> None:
    assert rollmux_processes.same_host(one, other) is rollmux_processes.same_host(other, one) is same


def test_progress_takes_numbers_of_numpy_and_delays_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced, heartbeats = list[str](), [0]
    with serving({"one": 3}, ttl_s=5.0) as little:
        answer = little.answer

        def refuse(method: str, path: str, body: dict[str, Any]) -> Any:
            heartbeats[0] += path.endswith("/heartbeat")
            return (400, {"error": "done: is negative"}) if path.endswith("/progress") else answer(method, path, body)

        monkeypatch.setattr(little, "answer", refuse)
        with rollmux_client.Job(rollmux_client.Service(little.url, TOKEN), "one", fence=fenced.append) as job:
            while heartbeats[0] < 4 and not fenced:
                job.progress(np.int64(-1), np.int64(2))  # type: ignore[arg-type]
                threading.Event().wait(0.02)
    assert fenced == []


def test_processes_beyond_those_that_a_request_may_name_are_left_out() -> None:
    job = rollmux_client.Job(None, "one", pids=lambda: {*range(1, 6000), 10**7})
    named = job._own_process_ids()["pids"]  # noqa: SLF001
    assert len(named) == 4096 and 10**7 not in named
    own = rollmux_client.Job(None, "one", pids=lambda: {*range(1, 6000), os.getpid()})
    assert os.getpid() in own._own_process_ids()["pids"]  # noqa: SLF001


def test_an_owner_waits_for_its_last_lease_to_expire_also_after_the_service_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service has granted it, and was killed before the answer came."""
    clock, begun = [0.0], []
    answers = iter(
        [{"placed": False}, ConnectionError("refused"), rollmux_client.Refused(409, "another lease of it lives"), {"lease": "7"}]
    )

    def ask(method: str, *_: object) -> dict[str, Any]:
        if method == "GET":
            return {"state": "running"}
        clock[0] += 100.0
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    monkeypatch.setattr(rollmux_client, "_now", lambda: clock[0])
    monkeypatch.setattr(rollmux_client, "time", SimpleNamespace(**{**vars(time), "sleep": lambda _: None}))
    monkeypatch.setattr(rollmux_client.Job, "_begin", lambda _, answer, **__: begun.append(answer["lease"]))
    asking = rollmux_client.Service("http://127.0.0.1:1", TOKEN)
    monkeypatch.setattr(asking, "ask", ask)
    rollmux_client.Job(asking, "one", say=lambda _: None).attach()
    assert begun == ["7"]


def test_a_script_under_exec_asks_until_it_knows_where_to_continue(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = rollmux_client.Job(rollmux_client.Service(service.url, TOKEN), "one")
    keeper.attach()
    iterate_once(keeper)
    service.jobs["one"].iteration = 1
    answer, refusals = service.answer, iter([(503, {"error": "the service is stopping"})])

    def refuse(method: str, path: str, body: dict[str, Any]) -> Any:
        return next(refusals, None) or answer(method, path, body) if method == "GET" else answer(method, path, body)

    monkeypatch.setattr(service, "answer", refuse)
    monkeypatch.setenv("ROLLMUX_LEASE", str(keeper.lease))
    try:
        with rollmux_client.attach() as job:
            assert job.iteration == 1
    finally:
        keeper.end(done=False)


def test_a_lease_that_comes_after_its_task_was_cancelled_is_given_back(
    service: LittleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, is_placed = service._attach, threading.Event()  # noqa: SLF001
    monkeypatch.setattr(service, "_attach", lambda job: attach(job) if is_placed.is_set() else (200, {"placed": False}))

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                async with rollmux_client.attach():
                    raise AssertionError("it was cancelled")
        is_placed.set()

    asyncio.run(scenario())
    assert service.jobs["one"].lease is None and "ROLLMUX_LEASE" not in os.environ


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_lease_is_not_given_back_while_the_rollout_beside_a_failed_training_uses_its_nodes(
    service: LittleService, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    join = threading.Thread.join

    def press(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "rollmux-rollouts":
            raise KeyboardInterrupt
        join(thread, timeout)

    begun, ends = threading.Event(), threading.Event()

    def sample(k: int) -> None:
        if k == 1:
            begun.set()
            ends.wait(60)

    def train(k: int, result: None) -> None:
        assert begun.wait(60)
        raise ValueError("no memory")

    def grant(method: str, path: str, body: dict[str, Any]) -> Any:
        return (200, {"granted": True}) if path.endswith("/acquire") else answer(method, path, body)

    answer, client = service.answer, rollmux_client.Service(service.url, TOKEN)
    monkeypatch.setattr(service, "answer", grant)
    monkeypatch.setattr(service, "_ask", lambda *_: (200, {}))
    monkeypatch.setattr(rollmux_client, "_WAIT_S", 0.1)
    try:
        if is_interrupted:
            monkeypatch.setattr(threading.Thread, "join", press)
        with pytest.raises(KeyboardInterrupt if is_interrupted else ValueError), rollmux_client.Job(client, "one") as job:
            job.side_by_side(sample, train, total=3)
        assert service.jobs["one"].lease is not None
    finally:
        ends.set()
    for thread in threading.enumerate():
        if thread.name == "rollmux-rollouts":
            join(thread)
    client.close()  # the connection of a request that was open when the lease was abandoned


def test_a_request_that_is_under_way_when_the_client_is_closed_leaves_no_connection(
    service: LittleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a heartbeat at the end of a job; a connection that nobody closes is a warning of Python's."""
    asked, goes_on, closed = threading.Event(), threading.Event(), list[object]()
    answer, close = service.answer, HTTPConnection.close

    def answer_late(method: str, path: str, body: dict[str, Any]) -> Any:
        asked.set()
        goes_on.wait(60)
        return answer(method, path, body)

    def note(connection: HTTPConnection) -> None:
        closed.append(connection)
        close(connection)

    monkeypatch.setattr(service, "answer", answer_late)
    monkeypatch.setattr(HTTPConnection, "close", note)
    client = rollmux_client.Service(service.url, TOKEN)
    request = threading.Thread(target=lambda: client.ask("GET", "/v1/jobs/one"))
    request.start()
    assert asked.wait(60)
    client.close()
    assert not closed
    goes_on.set()
    request.join(60)
    assert len(closed) == 1
    client.close()
