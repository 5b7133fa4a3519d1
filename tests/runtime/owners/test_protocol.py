"""One protocol of an owner: its table is as the docs draw it, and both transports say the same to the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollmux_client import Job, Refused, Service
from rollmux_protocol import ATTACHMENT, ITERATION, OutOfOrder, Turn, Turns

from rollmux_env.errors import Conflict
from rollmux_env.scheduler import facts
from runtime.coordinator.consequences import Consequences
from runtime.jobside.job_session import JobSession
from runtime.jobside.messages import CallOutOfOrder, IterationResult, PhaseReport
from runtime.run.driver import RunDriver
from tests.clients.little_service import TOKEN, LittleService, serving
from tests.oracle.draw import examples
from tests.runtime.pretend import Served, Waiting, attached_plan, job, plan_of

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "owners.md"
PHASES: tuple[Any, ...] = ("rollout", "training", "sync")
Word = tuple[str, str]  # what the scheduler is told: its kind, and the phase


def diagram(table: dict[str, dict[str, str]]) -> str:
    """A table of transitions as a block of a page."""
    names = {state: state.replace(" ", "_") for state in table}
    lines = [f"    state '{state}' as {name}".replace("'", '"') for state, name in names.items() if state != name]
    lines += [f"    {names[state]} --> {names[after]}: {event}" for state in table for event, after in table[state].items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


@pytest.mark.parametrize("table", [ITERATION, ATTACHMENT], ids=["iteration", "attachment"])
def test_the_page_draws_the_table_as_it_is(table: dict[str, dict[str, str]]) -> None:
    assert {after for events in table.values() for after in events.values()} <= table.keys()
    assert diagram(table) in PAGE.read_text()


class Model:
    """What the page says of the order of calls, by counts."""

    def __init__(self, iterations: int, staleness: int) -> None:
        self.iterations, self.staleness = iterations, staleness
        self.over = dict.fromkeys(PHASES, 0)
        self.open: set[str] = set()

    def may_begin(self, turn: Turn) -> bool:
        phase, number = turn.phase, turn.iteration
        rollouts, trainings, syncs = self.over.values()
        if self.open and (not self.staleness or phase in self.open or "sync" in (phase, *self.open)):
            return False
        if phase == "rollout":
            return number == rollouts < min(self.iterations, trainings + self.staleness + 1)
        if phase == "training":
            return number == trainings < rollouts
        return number == trainings - 1 >= syncs and (self.staleness > 0 or rollouts == trainings)

    def end(self, turn: Turn) -> None:
        self.open.discard(turn.phase)
        self.over[turn.phase] = turn.iteration + 1


def goes(turns: Turns, turn: Turn) -> bool:
    """Ask for a turn, if it need not wait and is the next one."""
    if turns.must_wait(turn):
        return False
    try:
        turns.ask(turn)
    except OutOfOrder:
        return False
    return True


@given(st.data(), st.integers(0, 2))
@examples(100)
def test_turns_are_as_a_plain_model_says(data: st.DataObject, staleness: int) -> None:
    turns, model = Turns(4, staleness), Model(4, staleness)
    for _ in range(24):
        phase = data.draw(st.sampled_from(PHASES))
        if phase in turns.open and data.draw(st.booleans()):
            turn = turns.open[phase]
            turns.grant(phase)
            assert turns.may_release(phase, turn.iteration)
            turns.release(phase)
            assert not turns.may_release(phase, turn.iteration)  # it is over
            model.end(turn)
            turns.done = turns.trainings
        else:
            turn = Turn(phase, max(0, model.over[phase if phase != "sync" else "training"] + data.draw(st.integers(-1, 1))))
            may = model.may_begin(turn)
            assert goes(turns, turn) == may
            model.open |= {phase} if may else set()


def listen(driver: RunDriver) -> list[Word]:
    """The words that the scheduler is told from now on, of what owners do."""
    words: list[Word] = []
    apply = driver.run.apply

    def listening(happened: Consequences, **more: Any) -> None:
        kinds = facts.Ready | facts.Finished | facts.Synced | facts.Iterated | facts.Sampled | facts.Left
        words.extend((type(one).__name__, getattr(one, "phase", "")) for one in happened.reports if isinstance(one, kinds))
        apply(happened, **more)

    driver.run.apply = listening  # type: ignore[assignment, method-assign]
    return words


async def by_http(folder: Path, script: Sequence[bool]) -> list[Word]:
    run = Served(attached_plan(folder, job("a", iterations=len(script), sync_s=1.0)))
    lease, words = await run.place("a"), listen(run.driver)
    for number, syncs in enumerate(script):
        await run.iterate(lease, number)
        if syncs:
            await run.leases.synced(lease, number, 0.0)
    await run.leases.end(lease, done=True)
    await run.stop(permits=False)
    return words


async def by_ray(folder: Path, script: Sequence[bool]) -> list[Word]:
    driver = RunDriver(plan_of(folder, [{"id": "a", "iterations": len(script)}], cached=False), Waiting(), keeps_running=True)
    outcome, calls, words = asyncio.ensure_future(driver.carry_out()), driver.calls, list[Word]()
    await asyncio.sleep(0)
    handle, done = driver.run.handles["a"], None
    while (order := await calls.order(handle, done)) is not None:
        words = words if order.profile or words else listen(driver)
        for pool in ("rollout", "training"):
            await calls.acquire(handle, pool)
            now_s = driver.run.log.now()
            await calls.release(handle, PhaseReport(pool, False, now_s, now_s, driver.run.log.now()))
        if order.profile or script[order.iteration]:
            await calls.synced(handle, driver.run.log.now(), driver.run.log.now())
        done = IterationResult({})
    driver.stop()
    outcome.cancel()
    await asyncio.gather(outcome, return_exceptions=True)
    return words


@given(st.lists(st.booleans(), min_size=1, max_size=4))
@settings(max_examples=8, deadline=None)
def test_owners_of_both_transports_say_the_same_to_the_scheduler(script: list[bool]) -> None:
    ways: list[Callable[[Path, Sequence[bool]], Awaitable[list[Word]]]] = [by_http, by_ray]

    async def main() -> list[list[Word]]:
        with TemporaryDirectory(ignore_cleanup_errors=True) as here, TemporaryDirectory(ignore_cleanup_errors=True) as there:
            return [await way(Path(place), script) for way, place in zip(ways, (here, there), strict=True)]

    http, ray = asyncio.run(main())
    assert http == ray
    assert [word for word in http if word[0] == "Iterated"] == [("Iterated", "")] * len(script)


@given(st.lists(st.sampled_from([Turn("rollout", k) for k in range(4)] + [Turn("training", k) for k in range(4)]), max_size=16))
@settings(max_examples=10, deadline=None)
def test_what_an_attached_owner_may_ask_is_what_the_table_says(asks: list[Turn]) -> None:
    async def main() -> None:
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            run = Served(attached_plan(Path(folder), job("a", iterations=4, staleness=1)))
            lease, turns = await run.place("a"), Turns(4, 1)
            for turn in asks:
                waits, line = turns.must_wait(turn), ""
                try:
                    if not waits:
                        turns.ask(turn)
                except OutOfOrder as wrong:
                    line = str(wrong)
                try:
                    answer = await run.leases.acquire(lease, turn.phase, turn.iteration, 0.0)
                except Conflict as wrong:
                    assert str(wrong) == f"job a: {line}"
                    continue
                assert not line and answer["granted"] == (not waits)
                if not waits:
                    turns.grant(turn.phase)
                    turns.release(turn.phase)
                    turns.done = turns.trainings
                    await run.leases.release(lease, turn.phase, turn.iteration)
            await run.stop(permits=False)

    asyncio.run(main())


class SessionWithoutRay(JobSession):
    """A job's session whose coordinator grants everything at once."""

    def __init__(self) -> None:
        self.turns, self.worst_case, self.where = Turns(), False, ""
        self.workers, self._staying, self._pools_loaded = [SimpleNamespace()], {}, set()  # type: ignore[list-item]
        self._spec = SimpleNamespace(is_asynchronous=False)  # type: ignore[assignment]
        self._devices = {"rollout": nullcontext(), "training": nullcontext()}
        self.now = lambda: 0.0  # type: ignore[method-assign]
        self.ask = self.flush = self._begin_phase = self._leave = lambda *_: ()  # type: ignore[assignment, method-assign]
        self._meter = SimpleNamespace(usage=lambda _: {}, waited_s=lambda _: 0.0, used=lambda *_: (0.0, 0.0, 0.0))  # type: ignore[assignment]


def ray_owner(_: LittleService) -> None:
    session = SessionWithoutRay()
    for phase in ("rollout", "train", "sync"):
        with session.hold(SimpleNamespace(), phase):
            pass


def http_owner(_: LittleService) -> None:
    async def main() -> None:
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            run = Served(attached_plan(Path(folder), job("a", iterations=2, sync_s=1.0)))
            lease = await run.place("a")
            await run.iterate(lease, 0)
            await run.leases.synced(lease, 0, 0.0)
            await run.leases.end(lease, done=True)
            await run.stop(permits=False)

    asyncio.run(main())


def client(little: LittleService) -> None:
    with Job(Service(little.url, TOKEN), "one") as owner:
        with owner.init():
            pass
        for phase in ("rollout", "training", "sync"):
            with owner.phase(phase):
                pass
        for _ in range(2):
            with owner.phase("rollout", 1, extra=True):
                pass


OF_PHASES = {"due": "ask rollout", "rollout asked": "grant rollout", "rollout": "release rollout", "sampled": "ask training"}
OF_PHASES |= {"training asked": "grant training", "training": "release training"}
OF_OTHERS = {"new": "ask init", "trained": "ask sync"}
OF_OTHERS |= {"no evaluation": "ask extra", "evaluation asked": "grant extra", "evaluation": "release extra"}


@pytest.mark.parametrize(("owner", "messages"), [(ray_owner, OF_PHASES), (http_owner, OF_PHASES), (client, OF_PHASES | OF_OTHERS)])
def test_owners_follow_the_table_that_the_page_draws(owner: Callable[[LittleService], None], messages: dict[str, str]) -> None:
    with serving({"one": 2}) as little:
        owner(little)
    for state, message in messages.items():
        with serving({"one": 2}) as little, pytest.MonkeyPatch.context() as patch:
            patch.setitem(ITERATION[state], message, "nonsense")
            with pytest.raises((OutOfOrder, CallOutOfOrder, Conflict, Refused, AssertionError)):  # or is never granted a phase
                owner(little)


def test_attachments_follow_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACHMENT["away"], "attach", "nonsense")
    with serving({"one": 2}) as little, pytest.raises(OutOfOrder):
        client(little)
    with pytest.raises((OutOfOrder, Conflict)):
        http_owner(little)
