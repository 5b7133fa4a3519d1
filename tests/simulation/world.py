"""One world: a service, its disk, the network and owners of jobs, what goes wrong with them, and whether what must be true is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import rollmux_client
import rollmux_processes
from rollmux_client import Refused

from rollmux_env.cluster.events import Parked
from rollmux_env.errors import InputError
from rollmux_env.keys.queue import Quota
from runtime.coordinator import planned_drains, run_log
from runtime.coordinator.profiles import versions
from runtime.coordinator.run_plan import LeaseRules, RunPlan
from runtime.journal import commits
from runtime.journal.carry import count_carried
from runtime.journal.write import Journal
from runtime.owners.http import ledger, owner_processes
from runtime.run import driver
from runtime.service import events, forecast, quotas, sender, serve_here, webhook
from runtime.service import service as run_service
from runtime.service.http import app as http_app
from runtime.service.http.listening import ListeningService
from runtime.service.plan import ServiceOptions
from runtime.service.tokens import Holder, Right
from tests.runtime.pretend import ELSEWHERE, PAIRS, attached_plan, job
from tests.simulation import disk as disks
from tests.simulation import threads
from tests.simulation.checks import Durable, Turn, journal_problems, linear_problems, waiting_problems
from tests.simulation.disk import Disk, DiskJournal
from tests.simulation.loop import Process, Strand, World
from tests.simulation.network import FATES, ClientService, Network
from tests.simulation.owner import Owner, Rank
from tests.simulation.schedule import DISK, STATED_GB, TIMED, USERS, Fault, JobPlan, Schedule
from tests.simulation.watcher import Watcher

SETTLES_S = 200.0  # after the last fault: leases run out, are freed, and owners come again
STOPS_S = 20.0  # in which a service that is told to stop has ended
_PHASES = 4  # of an iteration at most, with an evaluation and a sync
_ON_THE_WAY_S = 5.0  # all that the network and the disk may take in a period without faults
_RATES = (1.0, 0.999, 1.001, 0.95, 1.05)  # of clocks; quartz is within 0.0005
_AWAY_S = 20.0  # of the service in all, which no owner minds: two thirds of the time to live of a lease
_CLOSED_S = 20.0  # from the deadline of a drain until its node is used again
_RANKS = 100_000  # first process id of ranks
RAM = Path("/dev/shm")


@dataclass(frozen=True)
class Outcome:
    """What has become of a world.

    Attributes:
        problems: what was not as it must be. counts: what has happened, by kind. digest: of all that has happened, in its order,
        where a log is kept. ends_s: its time at the end. log: lines, where they were asked for.
    """

    schedule: Schedule
    problems: tuple[str, ...]
    counts: dict[str, int]
    digest: str
    ends_s: float
    log: tuple[str, ...] = ()


class Tokens:
    """Whoever asks is who he says: `operator`, or an owner."""

    def holder(self, token: str) -> Holder:
        return Holder("", Right.OPERATE) if token == "operator" else Holder(token, Right.ATTACH)


class SimulatedService(ListeningService):
    """The service, which listens on the simulated network."""

    async def listen(self, where: Any, patience_s: float = 0.0) -> tuple[str, int]:
        network = _scene().network
        log = SimpleNamespace(write=lambda *_: None)
        network.listen(http_app.make_app(self, Tokens(), log))  # type: ignore[arg-type]
        self._http = SimpleNamespace(url="http://service", port=80, close=network.close)  # type: ignore[assignment]
        return "http://service", 80


class Scene:
    """What there is in a world.

    Args:
        schedule: what happens. folder: of the journal, where that is a file. keeps_log: of what happens.
    """

    def __init__(self, schedule: Schedule, folder: Path | None, keeps_log: bool = False) -> None:
        self.schedule = schedule
        self.world = World(schedule.seed, keeps_log)  # type: ignore[abstract]
        faults = schedule.faults
        of_disk = {int(fault.at): fault.kind.removesuffix(" disk") for fault in faults if fault.kind in DISK}
        self.disk = Disk(self.world, of_disk, folder)
        self.network = Network(self.world, {int(fault.at): fault.kind for fault in faults if fault.kind in FATES})
        self.durable = Durable()
        self.disk.watch, self.network.answered = self.durable.add, self.durable.answered
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.turns: list[Turn] = []
        self.owners: list[Owner] = []
        self.saved: Counter[str] = Counter()  # iterations of the last checkpoint of each job's owner
        self.ranks: list[Rank] = []
        self.over: set[str] = set()  # jobs whose owner has been told that they are
        self.service: Process | None = None
        self.starts = 0
        self.hindered: set[Process] = set()  # services that could not begin, as the disk was full
        self.stops = False  # the service is to end for good
        self.wall_s = 1.7e9
        rules, nodes = LeaseRules(grace_s=schedule.grace_s), PAIRS[: 2 * schedule.pairs]
        if schedule.hosts:
            nodes = tuple(replace(node, host=ELSEWHERE) if node.name.endswith("-1") else node for node in nodes)
        if schedule.one_device:
            nodes = tuple(node for node in nodes if node.pool == "training")
        plan = attached_plan(folder or Path("/"), nodes=nodes, policy=schedule.policy, dispatch=schedule.dispatch, leases=rules)
        limits = {user: Quota(nodes=schedule.quota) for user in USERS if schedule.quota}
        more = {"quotas": limits, "min_run_s": schedule.min_run_s, "resume_s": schedule.resume_s}
        self.plan = replace(plan, cluster=plan.cluster.model_copy(update=more))

    def rate(self) -> float:
        """Of the clock of a process that begins."""
        return self.world.outside.draw.choice(_RATES) if self.schedule.drifts else 1.0

    # the service

    def start_service(self, again: bool = True) -> None:
        """A process of the service begins.

        Args:
            again: another one follows when it ends.
        """
        if self.stops:
            return
        world = self.world
        self.starts += 1
        process = Process(world, f"service.{self.starts}", world.outside.draw.choice([0.0, 300.0]), self.rate())
        kills = [fault for fault in self.schedule.faults if fault.kind == "kill service" and fault.target == str(self.starts)]
        process.dies_at = int(kills[0].at) if kills else 0
        if again:
            self.service = process
            process.ends.append(lambda: world.outside.post(self._restart_s(process), self.start_service))
        world.note(f"{process.name} begins")
        world.in_process(process, world.call_soon, self._serve, process)

    def _restart_s(self, process: Process) -> float:
        """Time until the launcher starts the service again: longer where it could not begin, as systemd's RestartSec."""
        return self.world.outside.draw.uniform(*((5.0, 15.0) if process in self.hindered else (0.1, 3.0)))

    def _serve(self, process: Process) -> None:
        task = asyncio.ensure_future(self._serving())
        task.add_done_callback(lambda task: self._served(process, task))

    async def _serving(self) -> None:
        resumes = self.disk.is_begun()
        if resumes:
            self.disk.begin_next_part()
        specs = [fact.spec for fact in self.disk.submitted()] if resumes else []
        plan: RunPlan = replace(self.plan, specs=tuple(specs), resume=resumes)
        await serve_here._serve(Path(plan.folder), ServiceOptions(), plan, None, lambda: 0, lambda line: None)

    def _served(self, process: Process, task: asyncio.Task[None]) -> None:
        if process.dead:
            return
        error = None if task.cancelled() else task.exception()
        if isinstance(error, InputError) and "is under way" in str(error):
            self.counts["refused a second service"] += 1
        elif isinstance(error, InputError) and "is full" in str(error):
            self.counts["began on a full disk"] += 1
            self.hindered.add(process)
        elif error is not None:
            self.problems.append(f"{process.name} has ended with {error!r}")
        process.kill()

    def terminate(self) -> None:
        """SIGTERM; a service ends then, soon."""
        process = self.service
        if process is None or process.dead:
            return
        self.counts["terminated"] += not process.signals
        process.signals = 1
        world, asked_s = self.world, self.world.now_s

        def look() -> None:
            stops_s = STOPS_S * (2 if self.disk.slow_until_s > asked_s else 1)  # a stop takes several commits, one after the other
            left_s = max(process.paused_until_s, asked_s) + stops_s - world.now_s  # in which it may still end
            if process.dead:
                return
            if left_s > 0:
                world.outside.post(left_s, look)
                return
            self.problems.append(f"{process.name} has not ended within {stops_s:g} s of SIGTERM")
            process.kill()

        look()

    # owners

    def start_owner(self, plan: JobPlan) -> None:
        """A process of a job begins."""
        if plan.id not in self.over and not self.stops:
            self.world.note(f"{plan.id}.{len(self.owners) + 1} begins")
            self.owners.append(Owner(self, plan, len(self.owners) + 1))

    def owner_gone(self, owner: Owner) -> None:
        """A process has ended; its launcher starts another one, unless the job is over.

        Ranks of one that was killed work on for a while; what ends by itself has ended them before.
        """
        draw, longest_s = self.world.outside.draw, 5.0
        if any(rank.owner is owner and rank.lives for rank in self.ranks):
            self.counts["orphans"] += 1
            self.world.outside.post(draw.uniform(1.0, 90.0), self.end_ranks, owner)
            longest_s = draw.choice([5.0, 90.0])
        if owner.status == 0:
            self.over.add(owner.plan.id)
        elif owner is self.owner_of(owner.plan.id):
            self.world.outside.post(draw.uniform(0.1, longest_s), self.start_owner, owner.plan)

    def owner_of(self, job_id: str) -> Owner | None:
        """The last process of a job."""
        return next((owner for owner in reversed(self.owners) if owner.plan.id == job_id), None)

    def fenced(self, owner: Owner, why: str) -> None:
        """An owner ends itself: not because the service was away for a while, or its disk was full when it began."""
        self.counts["fenced"] += 1
        if self.schedule.spares_owners and self.network.away_s < _AWAY_S:
            self.problems.append(
                f"{owner.process.name} has ended beside a service that was away for {self.network.away_s:.1f} s: {why}"
            )

    # processes of owners in sessions of their own

    def start_rank(self, owner: Owner, nodes: set[str]) -> Rank:
        """A process in a session of its own works on a phase."""
        rank = Rank(owner, nodes, _RANKS + len(self.ranks))
        self.ranks.append(rank)
        return rank

    def end_ranks(self, owner: Owner) -> None:
        """All processes of an owner end."""
        for rank in self.ranks:
            rank.lives = rank.lives and rank.owner is not owner

    def ranks_of(self, owner: Owner) -> list[int]:
        """Return the ids of an owner's ranks that live."""
        return [rank.pid for rank in self.ranks if rank.owner is owner and rank.lives]

    def ranks_on(self, job_id: str) -> list[Rank]:
        """Return the ranks of a job that live."""
        return [rank for rank in self.ranks if rank.owner.plan.id == job_id and rank.lives]

    def carriers(self, leases: Collection[str]) -> list[int]:
        """Return the ids of living ranks on the service's machine that carry one of some leases."""
        return [rank.pid for rank in self.ranks if rank.lives and rank.owner.plan.here and rank.lease in leases]

    def takes(self, owner: Owner, phase: str) -> None:
        """A process begins to use nodes: nobody else does."""
        self.world.note(f"{owner.process.name} uses {sorted(owner.nodes[phase])}")
        for other in self.owners:
            if other is not owner and other.nodes and other.may_work:
                both = owner.nodes[phase] & set().union(*other.nodes.values())
                if both:
                    names = f"{other.process.name} and {owner.process.name}"
                    self.problems.append(f"{', '.join(sorted(both))} in two hands at {self.world.now_s:.3f} s: {names}")

        for rank in self.ranks:
            both = owner.nodes[phase] & rank.nodes
            if rank.lives and rank.owner is not owner and both:
                names = f"a rank of {rank.owner.process.name} and {owner.process.name}"
                self.problems.append(f"{', '.join(sorted(both))} in two hands at {self.world.now_s:.3f} s: {names}")

    def lives(self, pid: int) -> bool:
        """Whether a process lives, by its number."""
        if pid >= _RANKS:
            return pid - _RANKS < len(self.ranks) and self.ranks[pid - _RANKS].lives
        return 0 < pid <= len(self.owners) and not self.owners[pid - 1].process.dead

    # what goes wrong

    def fault(self, fault: Fault) -> None:
        """Something happens."""
        self.world.note(f"{fault.kind} {fault.target} {fault.seconds:g}")
        owner, service = self.owner_of(fault.target), self.service
        match fault.kind:
            case "kill owner" if owner is not None and not owner.process.dead:
                self.counts["killed owners"] += 1
                owner.process.kill()
            case "pause owner" if owner is not None and not owner.process.dead:
                self.counts["pauses"] += 1
                owner.process.pause(fault.seconds)
            case "twin" if owner is not None:
                self.start_owner(owner.plan)
            case "pause service" | "machine sleeps" if service is not None and not service.dead:
                self.counts["pauses"] += 1
                service.pause(fault.seconds, sleeps=fault.kind == "machine sleeps")
            case "terminate":
                self.terminate()
            case "second service":
                self.start_service(again=False)
            case "month":
                self.wall_s += 31 * 86400.0
            case "wall clock":
                self.counts["clock jumps"] += 1
                self.wall_s += fault.seconds
            case "disk stays full":
                self.counts["bad minutes of the disk"] += 1
                self.disk.full_until_s = self.world.now_s + fault.seconds
            case "disk stays slow":
                self.counts["bad minutes of the disk"] += 1
                self.disk.slow_until_s = self.world.now_s + fault.seconds
            case "cancel":
                self.operator("DELETE", f"/v1/jobs/{fault.target}")
            case "quota":
                limits, path = {"nodes": 2, "node_hours": fault.seconds / 3600}, "/v1/quotas"
                unset = ("POST", path, {"user": fault.target, "quota": None})
                self.operator("POST", path, {"user": fault.target, "quota": limits}, then=(*unset, fault.seconds, (*unset, 10.0)))
            case "window":
                self.announce(fault)
            case "drain":
                path = f"/v1/nodes/{fault.target}"
                again = ("POST", f"{path}/undrain", None, 10.0)  # where the network has brought the drain once more
                self.operator("POST", f"{path}/drain", then=("POST", f"{path}/undrain", None, fault.seconds, again))

    def announce(self, fault: Fault) -> None:
        """An operator says by when jobs are to have left a node, and uses it again after a while."""
        path, left_s = f"/v1/nodes/{fault.target}", fault.seconds - _CLOSED_S
        deadline_s = self.wall_s + self.world.now_s + left_s
        undrain = ("POST", f"{path}/undrain", None)
        self.operator("POST", f"{path}/drain?deadline_s={deadline_s!r}", then=(*undrain, fault.seconds, (*undrain, 10.0)))
        if self.schedule.keeps_windows:
            self.world.outside.post(left_s, self._look_at_window, fault.target)

    def _look_at_window(self, node: str) -> None:
        """At its deadline no owner uses a node."""
        self.counts["windows"] += 1
        users = [owner.plan.id for owner in self.owners if not owner.process.dead and node in set().union(*owner.nodes.values())]
        if users:
            self.problems.append(f"{', '.join(users)} on {node} at {self.world.now_s:.3f} s, the deadline of its drain")

    def post(self, body: bytes) -> tuple[str, bool]:
        """Take a notice of the service, as `runtime.service.webhook._post`; now and then none is taken."""
        process = threads.present_process()
        threads.Time.sleep(process.draw.choice([0.01, 0.01, 9.0]))
        notice = json.loads(body)
        if process.draw.random() < 0.3:
            return "the receiver answers 503", True
        self.counts[f"notices of {notice['kind']}"] += 1
        self.durable.told(notice["kind"], notice["job"])
        return "", False

    def operator(self, method: str, path: str, body: Any = None, after_s: float = 0.0, then: tuple[Any, ...] = ()) -> None:
        """Somebody asks the service for something, until it is answered.

        Args:
            then: arguments for what is asked afterwards.
        """
        process = Process(self.world, f"operator.{next(self.world.numbers)}")

        def ask() -> None:
            service = ClientService(self.network, "operator")
            try:
                rollmux_client._until_answered(lambda: service.ask(method, path, body))
            except Refused as error:
                self.world.note(f"{method} {path}: {error}")
                if any(words in str(error) for words in ("is stopping", "nodes: ", "cannot be written")):  # not for good
                    process.kill()
                    self.operator(method, path, body, 1.0, then)
                    return
            process.kill()
            if then:
                self.operator(*then)

        self.world.in_process(process, Strand(process, ask).wake, after_s)

    def clear(self) -> None:
        """An operator looks at suspect nodes: those whose owners are no more may be used."""
        living = {one.plan.id for one in self.owners if not one.process.dead} | {
            rank.owner.plan.id for rank in self.ranks if rank.lives
        }
        used = {node for node, lease in self.durable.suspects if self.durable.jobs[lease] in living}
        for node in sorted({node for node, _ in self.durable.suspects} - used):
            self.operator("POST", f"/v1/nodes/{node}/clear")
        self.world.outside.post(10.0, self.clear)

    # the whole

    def carry_out(self) -> Outcome:
        """Let it all happen."""
        schedule, world = self.schedule, self.world
        threads.enter(world)
        disks.enter(self.disk)
        _scenes[:] = [self]
        outside = world.outside
        try:
            self._begin(outside)
            planned_s = sum(
                _PHASES * one.iterations * one.worst_s * one.overruns + one.late_s + one.comes_s for one in schedule.jobs
            )
            last_s = schedule.calm_s + SETTLES_S + planned_s + 60.0 * sum(fault.kind not in TIMED for fault in schedule.faults)
            over, found, count = self.over, self.problems, len(schedule.jobs)
            if not world.run(lambda: (len(over) == count and not self._left()) or bool(found), last_s):
                left = ", ".join(self._left())
                self.problems.append(f"{left} not over at {last_s:.0f} s; the last fault was before {schedule.calm_s:.0f} s")
            self._end()
        except Exception as error:  # a loop without an end, or a journal that cannot be read
            self.problems.append(f"{type(error).__name__}: {error}")
        finally:
            world.close()
        self.problems += self.durable.problems + world.errors
        counts = self.counts | Counter(self.network.used)
        counts += Counter(requests=self.network.requests, commits=self.disk.commits, torn=self.disk.torn, starts=self.starts)
        problems, log = tuple(self.problems), tuple(world.log or ())
        digest = "" if world.log is None else self._digest()
        return Outcome(schedule, problems, dict(sorted(counts.items())), digest, world.now_s, log)

    def _left(self) -> list[str]:
        """Jobs whose owners have not been told that they are over, or of which a second process lives."""
        living = {owner.plan.id for owner in self.owners if not owner.process.dead}
        return [one.id for one in self.schedule.jobs if one.id not in self.over or one.id in living]

    def _begin(self, outside: Process) -> None:
        outside.post(0.0, self.start_service)
        for plan in self.schedule.jobs:
            outside.post(outside.draw.uniform(0.0, 2.0) + plan.comes_s, self.operator, "POST", "/v1/jobs", entry_of(plan))
            outside.post(outside.draw.uniform(0.5, 6.0) + plan.late_s + plan.comes_s, self._start_when_submitted, plan)
        for fault in self.schedule.faults:
            if fault.kind in TIMED:
                outside.post(fault.at, self.fault, fault)
        outside.post(10.0, self.clear)
        if self.schedule.watched:
            outside.post(1.0, self._watch)

    def _watch(self) -> None:
        Watcher(self)

    def _start_when_submitted(self, plan: JobPlan) -> None:
        if ("Submitted", plan.id) in self.durable.last:
            self.start_owner(plan)
        else:
            self.world.outside.post(0.5, self._start_when_submitted, plan)

    def _end(self) -> None:
        """The service is told to stop, and its journal is read."""
        if self.problems:
            return
        world = self.world
        self.stops = True
        self.disk.faults, self.network.fates = {}, {}
        self.disk.full_until_s = self.disk.slow_until_s = 0.0
        if self.service is None or self.service.dead:
            self.start_service()
        service = self.service
        assert service is not None
        self.stops, service.dies_at = True, 0
        self.terminate()
        world.run(lambda: service.dead, world.now_s + 200.0)
        parts = self.disk.parts()
        facts = [fact for part in parts for fact in part[count_carried(part) :]]
        continued = sum(count_carried(part) > 0 for part in parts)
        self.counts |= {"parks": sum(isinstance(fact, Parked) for fact in facts), "continued": continued}
        self.counts |= {"roll-overs": len(parts) - 1 - continued}
        self.problems += journal_problems(parts, {one.id: one.iterations for one in self.schedule.jobs})
        self.problems += linear_problems(facts, self.disk.synced_s, self.turns)
        if self.schedule.bounds_waits:
            period_s = sum((_PHASES + one.inits) * one.worst_s * one.overruns for one in self.schedule.jobs)
            self.problems += waiting_problems(self.turns, period_s + _ON_THE_WAY_S)

    def _digest(self) -> str:
        happened = repr((self.disk.rows, self.disk.synced_s, self.problems, self.world.turns))
        return hashlib.sha256(happened.replace(self.plan.folder, "").encode()).hexdigest()[:16]


def entry_of(plan: JobPlan) -> dict[str, Any]:
    """A job as its file has it."""
    stated: dict[str, Any] = {"host_memory_gb": 1.0}
    if "profile" not in plan.entry:
        stated["worst_case_s"] = plan.worst_s
    if plan.keeps_gb is not None:
        stated["device_gb"] = STATED_GB
    sync_s = plan.worst_s if plan.kind == "sync" else 0.2 if plan.kind == "synced" else 0.0
    more: dict[str, Any] = {"sync_s": sync_s, "movable": plan.movable, "staleness": int(plan.kind == "asynchronous")}
    return job(plan.id, iterations=plan.iterations, rollout=stated, training=stated, user=plan.user, **more, **plan.entry)


_scenes: list[Scene] = []


def _scene() -> Scene:
    return _scenes[-1]


@contextlib.contextmanager
def _allowing(interrupts: int) -> Iterator[Callable[[], int]]:
    """Signals come to the process whose turn it is."""
    process = threads.present_process()
    yield lambda: process.signals


def _is_long(journal: Journal) -> bool:
    """Whether the newest part is to be rolled over although jobs are present."""
    most = _scene().schedule.rolls_at
    return most > 0 and journal.length - journal.carried >= most


def _check_signals() -> None:
    if threads.present_process().signals > 1:
        raise KeyboardInterrupt


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """The service and the client ask the world for time, threads, chance, processes and the disk, instead of this machine."""
    monotonic = threads.Time.monotonic
    known, here = versions(), rollmux_processes.pid_space()
    listening = SimpleNamespace(where=None, token="operator")
    replaced: dict[Any, dict[str, Any]] = {
        rollmux_client: {
            "_now": monotonic,
            "time": threads.Time,
            "threading": threads.Threading,
            "queue": threads.Queue,
            "random": threads.Chance,
            "_LOG": SimpleNamespace(warning=lambda *_: None),
            "pid_space": lambda: here,
        },
        run_log: {"monotonic": monotonic, "Journal": DiskJournal, "append_job_log": lambda *_: None, "_DYING_S": 0.0},
        commits: {"Thread": threads.Thread, "SimpleQueue": threads.SimpleQueue, "ask_for_short_slices": lambda: None},
        driver: {
            "monotonic": monotonic,
            "time": lambda: _scene().wall_s + _scene().world.now_s,
            "read_facts": lambda path: _scene().disk.facts(),
            "_TRIMS_S": 60.0,
            "_rehearse": lambda policy: None,
            "versions": lambda: known,
        },
        events: {"monotonic": monotonic, "entries_of_parts": lambda *asked: _scene().disk.after(*asked)},
        forecast: {"monotonic": monotonic},
        planned_drains: {"time": lambda: _scene().wall_s + _scene().world.now_s},
        quotas: {"time": lambda: _scene().wall_s + _scene().world.now_s},
        sender: {
            "Queue": threads.BoundedQueue,
            "Event": threads.Event,
            "Thread": threads.Thread,
            "os": SimpleNamespace(
                path=SimpleNamespace(lexists=lambda path: path.name == webhook.WEBHOOK and _scene().schedule.hooked)
            ),
        },
        webhook: {
            "_post": lambda target, body: _scene().post(body),
            "target_of": lambda folder: webhook.Target("http://receiver", "secret"),
        },
        run_service: {"MOST_FACTS": 20, "_MEASURES_S": 10.0, "is_long": _is_long},
        ledger: {"secrets": threads.Chance, "carriers_of": lambda leases: _scene().carriers(leases)},
        owner_processes: {
            "started": lambda pid: pid if _scene().lives(pid) else 0,
            "user_of": lambda pid: 0,
            "is_related": lambda pid, lease, named: True,
            "_is_others": lambda pid, job_id: False,
            "ancestors_of": lambda pid: set(),
            "pid_space": lambda: here,
        },
        serve_here: {
            "ListeningService": SimulatedService,
            "allowing": _allowing,
            "check_signals": _check_signals,
            "listening_of": lambda *_: listening,
            "let_in": lambda *_: None,
            "withdraw": lambda folder: None,
            "_LOOKS_S": 1.0,
        },
    }
    with contextlib.ExitStack() as stack:
        for module, values in replaced.items():
            stack.enter_context(patch.multiple(module, **values))
        stack.callback(gc.enable)
        gc.disable()  # when garbage is collected does not follow from the seed
        stack.callback(gc.unfreeze)
        gc.freeze()  # modules and compiled code are not looked at each time
        yield


def carry_out(schedule: Schedule, keeps_log: bool = False) -> Outcome:
    """Let the world of a schedule be; within `simulated`."""
    if not schedule.file:
        return Scene(schedule, None, keeps_log).carry_out()
    with TemporaryDirectory(dir=RAM if RAM.is_dir() else None) as folder:
        return Scene(schedule, Path(folder), keeps_log).carry_out()
