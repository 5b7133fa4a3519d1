"""The part of the coordinator that knows: state, clock and journal of a run, and what is under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic, time
from typing import Any

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.cluster.events import Event, Progress, Progressed
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State, apply
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import Cluster, Job, Phase, Pool, Scenario, Training
from rollmux_env.scheduler.dispatcher import migrates_at
from runtime.execution.ground import Ground
from runtime.execution.members import Gang, Runner, RunPlan
from runtime.execution.profiles import versions
from runtime.execution.tails import Tails
from runtime.facts import Fact, Started, Submitted
from runtime.journal import JOURNAL, Journal

CHECKPOINTS = "checkpoints"  # folder of the run's, with one of each job
_DYING_S = 30.0  # how long the last writer of a journal that goes on may still take to end


class Books:
    """What a run knows and writes down.

    Args:
        plan: what is to be done.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._state = State(plan.cluster, observed=True)
        self._ground = Ground(plan.nodes)
        self._tails = Tails(self._ground)
        self._delayed: dict[str, bool] = {}  # rollouts whose permits wait for a tail: id, and whether another permit was given then
        self._gangs: dict[int, Gang] = {}
        self._lease: Gang | None = None
        self._lease_need: dict[str, int] = {}
        self._deferred: list[Event] = []
        self._runners = {spec.id: Runner(spec) for spec in plan.specs}
        self._changed: dict[str, None] = {}  # jobs of which the state does not know all that they have done
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: list[str] = []
        self._zero_s = monotonic()

    def _open(self) -> None:
        """Make what may fail, and start the clock."""
        plan = self._plan
        _rehearse(make_runnable(plan.policy, plan.seed))
        self._policy = make_runnable(plan.policy, plan.seed)
        self._dispatch = make_dispatch(plan.dispatch)
        self._migrates_at = migrates_at(self._dispatch)
        self._journal = Journal(Path(plan.folder) / JOURNAL, plan.resume, wait_s=_DYING_S if plan.resume else 0.0)
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._freed = asyncio.Event()  # nodes have become free
        if plan.resume:
            return
        self._zero_s = monotonic()
        started = Started(0.0, time(), plan.policy, plan.dispatch, plan.cluster, plan.nodes, versions(), plan.seed)
        self._write(started, *(Submitted(0.0, spec) for spec in plan.specs))

    def _note(self, event: Event) -> None:
        apply(self._state, event)
        self._write(event)

    def _note_progress(self) -> None:
        """Let the state know what jobs have done."""
        known = [job_id for job_id in self._changed if self._state.is_running(job_id)]
        if known:
            parts = tuple(self._progress_of(job_id) for job_id in known)
            self._note(Progressed(self._now(), parts))
        self._changed.clear()

    def _progress_of(self, job_id: str) -> Progress:
        """What a job has done since it arrived, which may have been with some iterations behind it."""
        runner, left = self._runners[job_id], self._state.job(job_id).iterations
        before = runner.spec.iterations - (left or 0)
        return Progress(job_id, max(0, runner.iteration - before), runner.busy_s["rollout"], runner.busy_s["training"])

    def _write(self, *facts: Fact) -> None:
        try:
            self._journal.write(*facts)
        except InputError as error:
            self._break(error)
            raise

    def _say(self, line: str) -> None:
        self._news.append(f"{self._now():8.1f} s  {line}")

    def _now(self) -> float:
        return monotonic() - self._zero_s

    def _checkpoints(self, job_id: str) -> Path:
        return Path(self._plan.folder) / CHECKPOINTS / job_id

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)


def _rehearse(policy: Policy) -> None:
    """Let a policy of the same kind decide about a few jobs, so that nobody waits for its code to be compiled later.

    Raises:
        PlanError: it breaks an invariant.
    """
    pool = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)
    phase, training = Phase(worst_case_s=1.0), Training(worst_case_s=1.0)
    jobs = tuple(Job(id=f"job{k}", arrival_s=float(k), iterations=4, slo=3.0, rollout=phase, training=training) for k in range(3))
    replay(Scenario(version=1, cluster=Cluster(rollout=pool, training=pool, migration_s=1.0), jobs=jobs), policy)
