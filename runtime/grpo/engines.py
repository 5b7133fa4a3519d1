"""The engines of a built-in job's rollouts: worker processes, of which those of one size sample and the others sleep.

A share of a rollout belongs to an engine. Shares go from worker to worker without passing through the job.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollmux_segment import Footprint

from runtime.grpo.engine_slots import engine_slots_of
from runtime.grpo.messages import StagedShard
from runtime.grpo.shares import EngineShare, is_controlled
from runtime.grpo.switching import fullest_node, wait_for_stages
from runtime.jobs.spec import TaskJob
from runtime.phases import WorkerHandle, close_together, runtime_hook
from runtime.sync.plan import make_plan
from runtime.sync.wire import Transfer

if TYPE_CHECKING:
    from rollmux_env.timing.replica import ReplicaTiming
    from runtime.grpo.control import RunControl

_ROLLOUT = "runtime.grpo.rollout_worker:RolloutWorker"
_REWARDS = "runtime.grpo.reward_process:RewardProcess"


class RolloutEngines:
    """Engines of every size that the job may use, on the same nodes, and the workers that compute rewards.

    Args:
        spec: Specification of the job.
        concurrent: Whether a rollout may be under way while weights arrive, so that calls for these go beside it.

    Attributes:
        size: GPUs (or cores) of the engines that sample now.
        control: The rollout policy's decisions for this job, or None if it makes none.
    """

    def __init__(self, spec: TaskJob, concurrent: bool) -> None:
        self._spec, self._concurrent = spec, concurrent
        self._workers: list[WorkerHandle] = []
        self._reward_workers: list[WorkerHandle] = []
        self._machines: list[str] = []  # machine of each engine
        self._stagers: list[int] = []  # for each engine, the first one on its machine, which receives new weights
        self._sizes: list[int] = []
        self.size = spec.rollout.tensor_parallel
        self.control: RunControl | None = None

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def reward_after_rollout(self) -> bool:
        """Whether rewards are computed by separate workers, which continue after the engines have given up their nodes."""
        return bool(self._reward_workers)

    @property
    def in_use(self) -> tuple[int, ...]:
        """Numbers of the engines that may sample now."""
        return tuple(self._of_size()) if self._spec.rollout.sizes else runtime_hook.parts

    def load(self, checkpoint: Path | None) -> None:
        """Bring the engines in use to their devices; the first time, start all.

        Args:
            checkpoint: Folder that a first start reads, or None for the weights of the model.
        """
        if not self._workers:
            self._start(checkpoint)
        self.wake(self.in_use)

    def wake(self, engines: Iterable[int]) -> None:
        """Bring engines to their devices."""
        wait_for_stages([self._workers[k].call("residency.restore") for k in engines])

    def sleep(self, engines: Iterable[int]) -> None:
        """Take engines off their devices."""
        wait_for_stages([self._workers[k].call("residency.offload") for k in engines])

    def offload_or_stay(self, method: Literal["offload", "stay"]) -> Footprint:
        """Move the engines to host memory, or leave those in use; return what the fullest node keeps."""
        pairs = zip(self._workers, self._sizes, strict=True)
        footprints = wait_for_stages(
            [worker.call(f"residency.{method if size == self.size else 'offload'}") for worker, size in pairs]
        )
        return fullest_node(footprints, self._sizes, self.size, len(runtime_hook.nodes("rollout")))

    def resize(self, size: int) -> None:
        """Let engines of a size take the place of those in use."""
        if self._spec.rollout.sizes and size != self.size:
            self.sleep(self.in_use)
            self.size = size
            self.wake(self.in_use)

    def begin(self, shares_by_engine: Sequence[Sequence[EngineShare]], number: int, anchors: Mapping[str, float]) -> list[Any]:
        """Give the engines in use their shares of a rollout; return pending calls of all engines.

        Args:
            shares_by_engine: Shares of each engine in use.
            number: Iteration of the rollout.
            anchors: Seconds of tests that the last rollout has measured, from which timeouts of rewards follow.
        """
        total = sum(len(one.round.prompts) * one.round.responses for own in shares_by_engine for one in own if one.round.wanted)
        shares = dict(zip(self._of_size(), shares_by_engine, strict=True))
        return [
            worker.call("begin", number, runtime_hook.worst_case, total, shares.get(k, ()), anchors)
            for k, worker in enumerate(self._workers)
        ]

    @property
    def share_count(self) -> int:
        """Number of engines that share a rollout: all of the size in use."""
        return len(self._of_size())

    def sample(self, engines: Iterable[int], before: Sequence[Any]) -> bool:
        """Wait until engines stop, behind other pending calls; return whether any has more to sample."""
        calls = [self._workers[k].call("sample") for k in engines]
        return any(runtime_hook.wait([*before, *calls])[len(before) :])

    def evaluate(self) -> None:
        """Sample the held-out prompts with the engines in use, each its share."""
        here = self.in_use
        runtime_hook.wait(
            [self._workers[k].call("evaluate", place, len(here), runtime_hook.worst_case) for place, k in enumerate(here)]
        )

    def hand_over(self, before: Iterable[int], to: Sequence[int]) -> None:
        """Let the shares of engines continue on others; an engine that is among those keeps its own share.

        Args:
            before: Numbers of the engines that have shares.
            to: Numbers of the engines that sample from now on.
        """
        left = [self._workers[k].call("leave") for k in before]
        places: dict[int, list[int]] = {k: [] for k in to}
        algorithm = self._spec.algorithm
        shares = algorithm.prompts_per_iteration * algorithm.group_size if self.control else len(self._workers)
        for place in range(shares):
            places[place if place in places else to[place % len(to)]].append(place)
        runtime_hook.wait([self._workers[k].call("join", own, *left) for k, own in places.items()])

    def move(self, moved: Mapping[int, int]) -> None:
        """Let shares continue on other engines of the size in use, by number of the share and of the engine among them."""
        if moved:
            left, here = [worker.call("leave", tuple(moved)) for worker in self._workers], self._of_size()
            for engine in sorted(set(moved.values())):
                places = [place for place, to in moved.items() if to == engine]
                runtime_hook.wait(self._workers[here[engine]].call("join", places, *left))

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of `RolloutWorker` on all engines, and return the answer of each."""
        answers: list[Any] = runtime_hook.wait([worker.call(method, *arguments) for worker in self._workers])
        return answers

    def samples(self) -> tuple[Any, ...]:
        """Return pending calls that give the samples of each engine to a training rank."""
        return tuple(worker.call("take") for worker in self._workers)

    def receive(self, weights: Sequence[StagedShard]) -> tuple[Transfer, list[Any]]:
        """Begin to receive new weights, once on every machine.

        Returns:
            The transfer for the ranks, and the pending calls of the engines that receive.
        """
        here = [*dict.fromkeys(self._stagers)]
        machines, ranges = [self._machines[k] for k in here], [own.ranges for own in weights]
        plan = make_plan(ranges, machines, self._spec.sync.topology, len(self._workers))
        stagers = [self._workers[k] for k in here]
        addresses = runtime_hook.wait([self._call(worker, "residency.open_inbox") for worker in stagers])
        transfer = Transfer(weights[0].version, weights[0].layout, plan, tuple(addresses), secrets.token_bytes(32))
        return transfer, [self._call(worker, "residency.stage", place, transfer) for place, worker in enumerate(stagers)]

    def announce_weights(self) -> None:
        """Tell every engine which weights were staged on its machine; it takes them when it samples next."""
        staged = {k: self._call(self._workers[k], "residency.staged_version") for k in {*self._stagers}}
        pairs = zip(self._workers, self._stagers, strict=True)
        runtime_hook.wait([self._call(worker, "residency.set_staged", staged[stager]) for worker, stager in pairs])

    def check(self, ranks: Sequence[WorkerHandle]) -> None:
        """Raise what has ended a process of the engines or of the training ranks, if any has ended."""
        runtime_hook.wait([self._call(worker, "ready") for worker in [*ranks, *self._workers]])

    def close(self) -> None:
        """End the workers."""
        workers = [*self._workers, *self._reward_workers]
        self._workers, self._reward_workers = [], []
        close_together([worker.close for worker in workers])

    def _call(self, worker: WorkerHandle, method: str, *arguments: Any) -> Any:
        return worker.call_concurrently(method, *arguments) if self._concurrent else worker.call(method, *arguments)

    def _of_size(self) -> Sequence[int]:
        return [k for k, size in enumerate(self._sizes) if size == self.size]

    def _start(self, checkpoint: Path | None) -> None:
        rollout = self._spec.rollout
        seats = engine_slots_of(runtime_hook.nodes("rollout"), rollout)
        together = Counter(seat.size for seat in seats)
        with runtime_hook.stage("process"):
            self._reward_workers = _start_reward_workers(self._spec)
            self._workers = [
                runtime_hook.start_worker(
                    seat.node, _ROLLOUT, self._spec, k, len(seats), seat.node, self._reward_workers, together[seat.size]
                )
                for k, seat in enumerate(seats)
            ]
            places = self.ask("ready")
        self._machines, self._sizes = [seat.node.machine for seat in seats], [seat.size for seat in seats]
        self._stagers = [places.index(place) if place else k for k, place in enumerate(places)]
        timings, source = dict[int, "ReplicaTiming"](), str(checkpoint) if checkpoint else None
        for self.size in reversed(rollout.all_sizes):  # the configured size comes last, and stays on the devices
            own = self._of_size()
            wait_for_stages([self._workers[k].call("open", source, self._stagers[k] == k) for k in own])
            if rollout.sizes:
                timings[self.size] = runtime_hook.wait(self._workers[own[0]].call("timing"))
            if self.size != rollout.tensor_parallel:
                self.sleep(self.in_use)
        if checkpoint is not None:
            self.announce_weights()
            wait_for_stages([self._workers[k].call("residency.renew") for k in self._of_size()])
        self.control = _control_of(self._spec, together[rollout.tensor_parallel], timings)


def _control_of(spec: TaskJob, engines: int, timings: Mapping[int, ReplicaTiming]) -> RunControl | None:
    """Return the rollout policy's decisions for a job, or None if it makes none.

    Args:
        spec: Specification of the job.
        engines: Number of engines of the configured size.
        timings: Timing of an engine of each size, for jobs with engines of several sizes.
    """
    if not is_controlled(spec):
        return None
    from runtime.grpo.control import control_of

    return control_of(spec, engines, {size: timings[size] for size in spec.rollout.all_sizes if size in timings})


def _start_reward_workers(spec: TaskJob) -> list[WorkerHandle]:
    """Start reward workers on the machines of the rollout nodes in turn, each on whichever cores are idle there."""
    nodes = runtime_hook.nodes("rollout")
    places = [replace(nodes[k % len(nodes)], cores=(), gpus=()) for k in range(spec.rewards.workers or 0)]
    return [runtime_hook.start_worker(place, _REWARDS, spec) for place in places]
