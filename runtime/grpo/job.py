"""The job itself: GRPO on a language model and a task, written with nothing but what a job of the user's own has.

The job itself only says what happens when; models live in its workers, an engine or a rank of training each. What a rollout samples
goes from worker to worker without passing through here, and new weights wait in host memory of the rollout nodes until the next
rollout.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmux_segment import Footprint

from rollmux_env.rollout.policy import Round
from runtime.grpo.messages import Kept, Results, Rolled, Status
from runtime.grpo.rewards import merged
from runtime.grpo.seats import footprint_of, parts_of, seats_of
from runtime.grpo.shares import Course, RacedRollout, figures, is_controlled, rounds_of
from runtime.grpo.state import Data, read_data, write_data
from runtime.jobs.spec import JobSpec
from runtime.jobs.tasks import is_cheap
from runtime.machine import Node
from runtime.phases import POOL_OF, PhaseOfJob, WorkerHandle, phase, runtime_hook
from runtime.sync.plan import make_plan
from runtime.sync.wire import Transfer

if TYPE_CHECKING:
    from runtime.grpo.control import RunControl

_ROLLOUT = "runtime.grpo.rollout_worker:RolloutWorker"
_TRAINING = "runtime.grpo.training_worker:TrainingWorker"
_REWARDS = "runtime.grpo.reward_process:RewardProcess"
_LOOKS_S = 0.01, 0.5  # between looks at ranks that write: at first, and in the end


class Grpo:
    """One GRPO job.

    Args:
        spec: of the job file.
    """

    checkpoint_before_training = True  # until then it is as it was after its last iteration

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._engines: list[WorkerHandle] = []
        self._ranks: list[WorkerHandle] = []
        self._reward_workers: list[WorkerHandle] = []
        self._rolled = Rolled()
        self._machines: list[str] = []  # of the engines
        self._stager: list[int] = []  # of each engine that which receives new weights for it: the first on its machine
        self._sizes: list[int] = []  # of them
        self._size = spec.rollout.tensor_parallel  # of those in use
        self._weights: list[Kept] = []
        self._checkpoint: Path | None = None
        self._rounds = rounds_of(spec)
        self._long = False  # the rollout in hand runs what earlier ones left
        self._control: RunControl | None = None  # what decides inside its rollouts
        self._anchors: dict[str, float] = {}  # of the rewards' timeout
        self._news: dict[str, float] = {}  # of them, what the last rollout has changed
        self._profiled = False  # what the ranks have trained since is to be forgotten

    def step(self) -> None:
        """One iteration."""
        self._roll_out()
        self.train()
        self.sync()

    def load(self, phase: PhaseOfJob) -> None:
        """Bring the phase's workers to their devices; start them the first time."""
        if phase == "rollout":
            if not self._engines:
                self._start_engines()
            self._stages([self._engines[part].call("restore") for part in self._in_use()])
        else:
            if not self._ranks:
                self._start_ranks()
            keep = runtime_hook.worst_case
            self._stages([worker.call("restore", keep, self._profiled) for worker in self._ranks])
            self._profiled = False

    def offload(self, phase: PhaseOfJob) -> Footprint:
        """Move their state to host memory; returns what the fullest node keeps of it."""
        return self._park(phase, "offload")

    def stay(self, phase: PhaseOfJob) -> Footprint:
        """Leave it on the devices until the phase comes again; returns as `offload`."""
        return self._park(phase, "stay")

    def _park(self, phase: PhaseOfJob, method: str) -> Footprint:
        if phase == "rollout":
            workers, sizes, size = self._engines, self._sizes, self._size
        else:
            workers, sizes, size = self._ranks, [1] * len(self._ranks), 1
        calls = [worker.call(method if one == size else "offload") for worker, one in zip(workers, sizes, strict=True)]
        footprints = self._stages(calls)
        share = len(workers) // len(runtime_hook.nodes(POOL_OF[phase]))  # workers of a node come one after the other
        places = [slice(k, k + share) for k in range(0, len(footprints), share)]
        nodes = [footprint_of(footprints[place], sizes[place], size) for place in places]
        return max(nodes, key=lambda part: part.device + part.host)

    def _roll_out(self) -> None:
        """A rollout, and what is left to do of its rewards: reward workers go on with them when the engines have their nodes no
        more."""
        self.rollout()
        if self._reward_workers:
            began_s = time.monotonic()
            self._take_results()
            runtime_hook.report(reward_wait_s=time.monotonic() - began_s)

    @phase("rollout")
    def rollout(self) -> None:
        """Sample the responses that the iteration trains on, every engine its share of them, and reward them as they end."""
        number, worst_case = max(runtime_hook.iteration, 0), runtime_hook.worst_case
        this_round = self._rounds.next()
        course = self._course(this_round)
        for size in (*self._spec.rollout.sizes, course.size) if worst_case else (course.size,):
            self._resize(size)  # of the worst case every change is a part
        beginnings = self._begin(course, number, worst_case)
        whole = bool(self._spec.rollout.sizes) or len(runtime_hook.parts) == len(self._engines)  # else beside a migrated tail
        if not whole:
            self._hand_over(range(len(self._engines)), runtime_hook.parts)
        self._evaluate(number, worst_case)
        parts, began_s = self._in_use(), time.monotonic()
        runtime_hook.wake(course.wake if whole or course.races else None)
        while any(runtime_hook.wait([*beginnings, *(self._engines[part].call("sample") for part in parts)])[len(beginnings) :]):
            beginnings = []
            runtime_hook.regroup(self._leave)
            whole = whole and self._in_use() == parts  # what the dispatch policy has done to it, the rollout policy leaves as it is
            self._change(course, parts, whole, time.monotonic() - began_s)
            parts = self._in_use()
        if isinstance(course, RacedRollout) and course.wake is not None:  # all prompts were complete before it was asked
            self._judge(course)
        if course.decides:
            self._end(course, time.monotonic() - began_s)
        self._long = this_round.long
        if not self._reward_workers:
            self._take_results()

    def _change(self, course: Course, before: Sequence[int], whole: bool, now_s: float) -> None:
        """See where a rollout goes on that has stopped, and whether it does.

        Args:
            before: numbers of the engines that it was on. whole: no tail of it was moved. now_s: since it began.
        """
        parts = self._in_use()
        if parts != before:
            self._stages([self._engines[part].call("restore") for part in parts if part not in before])
            self._hand_over(before, parts)
        elif whole and course.decides and course.wake is not None:
            moved = course.act(self._statuses(), now_s)
            self._resize(course.size)
            self._shift(moved)
        if isinstance(course, RacedRollout):
            self._judge(course)
        runtime_hook.wake(course.wake if whole or course.races else None)

    def _course(self, this_round: Round) -> Course:
        """How the rollout in hand goes, as the rollout policy has begun it."""
        if self._control is None or runtime_hook.worst_case:
            launches_more = len(this_round.prompts) > this_round.wanted and not runtime_hook.worst_case
            races = launches_more and len(self._engines) > 1
            return (RacedRollout if races else Course)(this_round, self._spec.rollout.tensor_parallel)
        from runtime.grpo.control import ControlledRollout

        course = ControlledRollout(self._control, this_round)
        course.begin()
        return course

    def _judge(self, course: RacedRollout) -> None:
        """End a rollout on all engines, if enough of its prompts are complete."""
        parts = runtime_hook.wait([worker.call("standings") for worker in self._engines])
        standings = {prompt: one for _, own in parts for prompt, one in own.items()}
        first = course.ends(sum(done for done, _ in parts), standings)
        if first is not None:
            runtime_hook.wait([worker.call("end", first) for worker in self._engines])

    def _begin(self, course: Course, number: int, worst_case: bool) -> list[Any]:
        """Give the engines in use their shares; calls of all engines."""
        here = self._of_its_size()
        dealt = course.dealt(len(here))
        total = sum(len(one.round.prompts) * one.round.responses for own in dealt for one in own if one.round.wanted)
        shares = dict(zip(here, dealt, strict=True))
        return [
            worker.call("begin", number, worst_case, total, shares.get(k, ()), self._news) for k, worker in enumerate(self._engines)
        ]

    def _end(self, course: Course, seconds: float) -> None:
        """The policy learns what has become of the rollout."""
        preemptions = sum(runtime_hook.wait([worker.call("preemptions") for worker in self._engines]))
        course.end(self._statuses(), seconds, preemptions)
        if self._spec.rollout.sizes:
            runtime_hook.report(engine_size=course.size, resizes=course.resizes, preemptions=preemptions)

    def _take_results(self) -> None:
        """Wait for the rewards, and say what has been sampled."""
        spec, engines = self._spec, self._engines
        sums = runtime_hook.wait([worker.call("evaluation") for worker in engines])
        if evaluated := sum(count for _, count in sums):
            runtime_hook.report(eval_reward=sum(rewards for rewards, _ in sums) / evaluated)
        results: list[Results] = runtime_hook.wait([worker.call("results") for worker in engines])
        self._news = merged({}, [part.anchors for part in results])
        self._rolled = Rolled(tuple(worker.call("take") for worker in engines), self._report_responses(results))
        runtime_hook.report(**figures([part.lines for part in results], spec.algorithm.max_tokens))
        if spec.rollout.policy == "tail-batching":
            runtime_hook.report(long_round=self._long, queue=len(self._rounds.queue))
        if spec.task is not None and not is_cheap(spec.task):
            runtime_hook.report(stopped_rewards=sum(part.stopped for part in results))

    @staticmethod
    def _report_responses(results: Iterable[Results]) -> list[int]:
        """Say of every response what it was like, and show some; numbers of their prompts."""
        for part in results:
            if part.sample is not None:
                runtime_hook.sample(*part.sample)
        lines = sorted((line for part in results for line in part.lines), key=lambda line: line.place)
        for line in lines:
            runtime_hook.trajectory(line.prompt, line.prompt_tokens, (line.tokens,), (), line.seconds, line.switches)
        return sorted({line.prompt for line in lines})

    def _of_its_size(self) -> Sequence[int]:
        """Numbers of the engines of the size in use."""
        return [k for k, size in enumerate(self._sizes) if size == self._size]

    def _in_use(self) -> tuple[int, ...]:
        """Numbers of the engines that may sample now."""
        return tuple(self._of_its_size()) if self._spec.rollout.sizes else runtime_hook.parts

    def _resize(self, size: int) -> None:
        """Let engines of a size take the place of those in use."""
        if self._spec.rollout.sizes and size != self._size:
            self._leave(self._in_use())
            self._size = size
            self._stages([self._engines[part].call("restore") for part in self._in_use()])

    def _statuses(self) -> list[Status]:
        return [one for own in runtime_hook.wait([worker.call("status") for worker in self._engines]) for one in own]

    def _shift(self, moved: Mapping[int, int]) -> None:
        """Let shares go on at other engines, counted among those of the size in use."""
        if moved:
            shares, here = [worker.call("leave", tuple(moved)) for worker in self._engines], self._of_its_size()
            for engine in sorted(set(moved.values())):
                places = [place for place, to in moved.items() if to == engine]
                runtime_hook.wait(self._engines[here[engine]].call("join", places, *shares))

    def _evaluate(self, number: int, worst_case: bool) -> None:
        """Try the weights on held-out prompts, if it is time to: before sampling, so that no tail waits for it."""
        evaluation, parts = self._spec.evaluation, self._in_use()
        if evaluation is None or not (worst_case or evaluation.is_due(number, self._spec.iterations)):
            return
        runtime_hook.wait([self._engines[part].call("evaluate", k, len(parts), worst_case) for k, part in enumerate(parts)])

    def parts(self) -> list[Node]:
        """A part of the rollout nodes for each engine: some are enough for a rollout. Engines of several sizes need all of them."""
        rollout = self._spec.rollout
        return [] if rollout.sizes else [seat.node for seat in seats_of(runtime_hook.nodes("rollout"), rollout)]

    def _leave(self, parts: Sequence[int]) -> None:
        """Take engines off their devices."""
        self._stages([self._engines[part].call("offload") for part in parts])

    def _hand_over(self, before: Iterable[int], parts: Sequence[int]) -> None:
        """Let what is not over go on with these engines: a share with its own, if it is among them."""
        shares = [self._engines[part].call("leave") for part in before]
        whose: dict[int, list[int]] = {part: [] for part in parts}
        count = (
            self._spec.algorithm.prompts_per_iteration * self._spec.algorithm.group_size if self._control else len(self._engines)
        )
        for place in range(count):
            whose[place if place in whose else parts[place % len(parts)]].append(place)
        runtime_hook.wait([self._engines[part].call("join", places, *shares) for part, places in whose.items()])

    @phase("train")
    def train(self) -> None:
        """Update the weights with what was sampled, by weights that are no older than the job allows."""
        rolled = self._due()
        metrics = runtime_hook.wait([worker.call("update", *rolled.samples) for worker in self._ranks])[0]
        runtime_hook.report(**metrics)
        flat = self._spec.sync.topology == "flat"
        self._weights = runtime_hook.wait([worker.call("keep_weights", flat) for worker in self._ranks])
        if not runtime_hook.worst_case:
            self._trained(rolled)

    def _due(self) -> Rolled:
        """What the next training is on."""
        rolled, self._rolled = self._rolled, Rolled()
        return rolled

    def _trained(self, rolled: Rolled) -> None:
        """A rollout counts once it is trained on: one whose training never came is sampled again."""
        self._count(rolled)

    def _count(self, rolled: Rolled) -> None:
        """The job goes on with the next prompts."""
        self._rounds.done(rolled.complete)
        self._anchors = merged(self._anchors, [self._news])

    @phase("sync")
    def sync(self) -> None:
        """Stage the new weights in host memory of every rollout worker."""
        here = [*dict.fromkeys(self._stager)]
        machines, parts = [self._machines[k] for k in here], [weights.ranges for weights in self._weights]
        plan = make_plan(parts, machines, self._spec.sync.topology, len(self._engines))
        stagers = [self._engines[k] for k in here]
        addresses = runtime_hook.wait([self._beside(worker, "open_inbox") for worker in stagers])
        version, layout = self._weights[0].version, self._weights[0].layout
        transfer = Transfer(version, layout, plan, tuple(addresses), secrets.token_bytes(32))
        receiving = [self._beside(worker, "stage", place, transfer) for place, worker in enumerate(stagers)]
        sending = [worker.call("send", transfer) for worker in self._ranks]
        try:
            sizes = runtime_hook.wait(sending)
            runtime_hook.wait(receiving)
        except RuntimeError:  # a process that has died is the reason, if there is one
            runtime_hook.wait([self._beside(worker, "ready") for worker in self._ranks + self._engines])
            raise
        self._tell_landed()
        runtime_hook.report(sync_link_bytes=sum(sizes), sync_weight_bytes=layout.nbytes)

    def _tell_landed(self) -> None:
        """Let every engine know what has been staged for it."""
        landed = {k: self._beside(self._engines[k], "landed") for k in {*self._stager}}
        pairs = zip(self._engines, self._stager, strict=True)
        runtime_hook.wait([self._beside(worker, "know", landed[stager]) for worker, stager in pairs])

    def _beside(self, worker: WorkerHandle, method: str, *arguments: Any) -> Any:
        """Call a worker."""
        return worker.call(method, *arguments)

    def profile(self) -> None:
        """One iteration with every response at its longest; weights and optimizer are then as they were."""
        Grpo.step(self)
        runtime_hook.wait([worker.call("know", None) for worker in self._engines])
        self._profiled = True

    def checkpoint(self, folder: Path) -> Callable[[], dict[str, tuple[int, str]]]:
        """Write where it is in its data, and begin with weights, optimizer and counts, each rank its own part, from host memory.

        Returns:
            What waits until the ranks have written theirs, in any thread.
        """
        ranks = self._ranks
        self._write(folder)
        runtime_hook.wait([worker.call("begin_writing", str(folder)) for worker in ranks])

        def finish() -> dict[str, tuple[int, str]]:
            pause_s = _LOOKS_S[0]
            while None in (parts := runtime_hook.wait([worker.call("written") for worker in ranks])):
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, _LOOKS_S[1])
            return {name: entry for part in parts for name, entry in part.items()}

        return finish

    def _write(self, folder: Path) -> None:
        """Write what is not the ranks'."""
        write_data(folder, Data(self._rounds.position, self._rounds.queue, self._anchors))

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint as soon as workers are started."""
        self._checkpoint = folder
        self._rounds.position, self._rounds.queue, self._anchors = read_data(folder)

    def close(self) -> None:
        """End the workers."""
        for worker in self._engines + self._ranks + self._reward_workers:
            worker.close()
        self._engines, self._ranks, self._reward_workers = [], [], []

    def _start_engines(self) -> None:
        rollout = self._spec.rollout
        seats = seats_of(runtime_hook.nodes("rollout"), rollout)
        together = Counter(seat.size for seat in seats)
        with runtime_hook.stage("process"):
            self._reward_workers = self._start_reward_workers()
            self._engines = [
                runtime_hook.start_worker(
                    seat.node, _ROLLOUT, self._spec, k, len(seats), seat.node, self._reward_workers, together[seat.size]
                )
                for k, seat in enumerate(seats)
            ]
            places = runtime_hook.wait([worker.call("ready") for worker in self._engines])
        self._machines, self._sizes = [seat.node.machine for seat in seats], [seat.size for seat in seats]
        self._stager = [places.index(place) if place else k for k, place in enumerate(places)]
        timings = {}
        for self._size in reversed(rollout.all_sizes):  # the configured one last: it stays on the devices
            own = self._of_its_size()
            self._stages([self._engines[k].call("open", self._source(), self._stager[k] == k) for k in own])
            if rollout.sizes:
                timings[self._size] = runtime_hook.wait(self._engines[own[0]].call("timing"))
            if self._size != rollout.tensor_parallel:
                self._leave(self._in_use())
        if self._checkpoint is not None:
            self._tell_landed()
            self._stages([self._engines[k].call("renew") for k in self._of_its_size()])
        if is_controlled(self._spec):
            from runtime.grpo.control import control_of

            ordered = {size: timings[size] for size in rollout.all_sizes if size in timings}
            self._control = control_of(self._spec, together[rollout.tensor_parallel], ordered)

    def _start_reward_workers(self) -> list[WorkerHandle]:
        """On the machines of the rollout nodes in turn, and there on whatever cores are idle."""
        nodes = runtime_hook.nodes("rollout")
        places = [replace(nodes[k % len(nodes)], cores=(), gpus=()) for k in range(self._spec.rewards.workers or 0)]
        return [runtime_hook.start_worker(place, _REWARDS, self._spec) for place in places]

    def _start_ranks(self) -> None:
        parts = [part for node in runtime_hook.nodes("training") for part in parts_of(node, 1)]
        with runtime_hook.stage("process"):
            self._ranks = [
                runtime_hook.start_worker(part, _TRAINING, self._spec, k, len(parts), part) for k, part in enumerate(parts)
            ]
            runtime_hook.wait([worker.call("ready") for worker in self._ranks])
        meeting = runtime_hook.wait(self._ranks[0].call("meeting"))
        self._stages([worker.call("open", meeting, self._source()) for worker in self._ranks])

    def _source(self) -> str | None:
        return str(self._checkpoint) if self._checkpoint else None

    @staticmethod
    def _stages(calls: list[Any]) -> list[Footprint]:
        """Wait for workers that load or offload; the slowest says how long each part took."""
        footprints, longest = [], dict[str, float]()
        for footprint, stages in runtime_hook.wait(calls):
            footprints.append(footprint)
            for name, seconds in stages.items():
                longest[name] = max(longest.get(name, 0.0), seconds)
        for name, seconds in longest.items():
            runtime_hook.reported.stages[name] = runtime_hook.reported.stages.get(name, 0.0) + seconds
        return footprints
