"""GRPO on a language model and a task, written with nothing but what a job of a user's own has.

The job says what happens when. The models live in worker processes: `engines` of its rollouts and `ranks` of its trainings. Samples
go from worker to worker without passing through here; new weights wait in host memory of the rollout nodes until the next rollout.
What a training rank computes is in `runtime.training.trainer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from rollmux_segment import Footprint

from runtime.grpo.engine_slots import engine_slots_of
from runtime.grpo.engines import RolloutEngines
from runtime.grpo.messages import RolloutSamples, ShareResults, StagedShard
from runtime.grpo.ranks import TrainingRanks
from runtime.grpo.rewards import merged
from runtime.grpo.rollout import run_rollout
from runtime.grpo.shares import figures, rounds_of
from runtime.grpo.state import DataPosition, read_data, write_data
from runtime.jobs.spec import TaskJob
from runtime.machine import Node
from runtime.phases import PhaseOfJob, close_together, phase, runtime_hook


class Grpo:
    """One GRPO job.

    Args:
        spec: Specification of the job, from its job file.
        concurrent: Whether a rollout may be under way during a sync.
    """

    checkpoint_before_training = True  # until then the job is as it was after its last iteration

    def __init__(self, spec: TaskJob, concurrent: bool = False) -> None:
        self._spec = spec
        self._engines, self._ranks = RolloutEngines(spec, concurrent), TrainingRanks(spec)
        self._rounds = rounds_of(spec)  # the prompts of each rollout
        self._is_long_round = False  # whether the last rollout was on prompts that earlier ones had put off
        self._rolled = RolloutSamples()  # samples that the next training is on
        self._weights: list[StagedShard] = []  # of the last training, for the next sync
        self._anchors: dict[str, float] = {}  # seconds of each test, from which timeouts of rewards follow
        self._new_anchors: dict[str, float] = {}  # those that the last rollout has changed
        self._checkpoint: Path | None = None

    def step(self) -> None:
        """Run one iteration: sample responses and reward them, update the weights, and send these to the engines."""
        self._roll_out()
        self.train()
        self.sync()

    @phase("rollout")
    def rollout(self) -> None:
        """Sample the responses that the iteration trains on, and reward each as it ends."""
        due = self._rounds.next()
        run_rollout(self._spec, self._engines, due, self._new_anchors)
        self._is_long_round = due.long
        if not self._engines.reward_after_rollout:
            self._take_results()

    @phase("train")
    def train(self) -> None:
        """Take one step on the sampled responses: advantages within each prompt's group, and the clipped policy gradient."""
        rolled = self._next_samples()
        runtime_hook.report(**self._ranks.update(rolled.samples))
        self._weights = self._ranks.keep_weights()
        if not runtime_hook.worst_case:
            self._trained(rolled)

    @phase("sync")
    def sync(self) -> None:
        """Stage the new weights in host memory of every rollout machine. This needs no nodes: another job may hold them."""
        transfer, receiving = self._engines.receive(self._weights)
        sending = self._ranks.send(transfer)
        try:
            sent_bytes = runtime_hook.wait(sending)
            runtime_hook.wait(receiving)
        except RuntimeError:  # a process that has died is the reason, if one has
            self._engines.check(self._ranks.workers)
            raise
        self._engines.announce_weights()
        runtime_hook.report(sync_link_bytes=sum(sent_bytes), sync_weight_bytes=transfer.layout.nbytes)

    def load(self, phase: PhaseOfJob) -> None:
        """Bring the phase's workers to their devices; start them the first time."""
        (self._engines if phase == "rollout" else self._ranks).load(self._checkpoint)

    def offload(self, phase: PhaseOfJob) -> Footprint:
        """Move the state of the phase's workers to host memory; return what the fullest node keeps of it."""
        return self._park(phase, "offload")

    def stay(self, phase: PhaseOfJob) -> Footprint:
        """Leave the state on the devices until the phase's next turn; return as `offload`."""
        return self._park(phase, "stay")

    def parts(self) -> list[Node]:
        """Return a part of the rollout nodes for each engine, if some of them suffice for a rollout: none if sizes change."""
        rollout = self._spec.rollout
        return [] if rollout.sizes else [seat.node for seat in engine_slots_of(runtime_hook.nodes("rollout"), rollout)]

    def profile(self) -> None:
        """Run one iteration with every response at its longest; weights and optimizer state are then as before."""
        Grpo.step(self)
        self._engines.ask("residency.set_staged", None)  # they sample on with the weights that they have
        self._ranks.discard_profile()

    def checkpoint(self, folder: Path) -> Callable[[], dict[str, tuple[int, str]]]:
        """Write the position in the data, and begin to write weights and optimizer state from host memory.

        Returns:
            A function that waits until the ranks have written their shards, in any thread, and returns (bytes, digest) by file.
        """
        self._write(folder)
        return self._ranks.begin_checkpoint(folder)

    def restore(self, folder: Path) -> None:
        """Continue from a checkpoint as soon as workers are started."""
        self._checkpoint = folder
        self._rounds.position, self._rounds.queue, self._anchors = read_data(folder)

    def close(self) -> None:
        """End the workers."""
        close_together((self._engines.close, self._ranks.close))

    def _park(self, phase: PhaseOfJob, method: Literal["offload", "stay"]) -> Footprint:
        return (self._engines if phase == "rollout" else self._ranks).offload_or_stay(method)

    def _roll_out(self) -> None:
        """Run a rollout, and wait for rewards that are computed when the engines have given up their nodes."""
        self.rollout()
        if self._engines.reward_after_rollout:
            began_s = time.monotonic()
            self._take_results()
            runtime_hook.report(reward_wait_s=time.monotonic() - began_s)

    def _take_results(self) -> None:
        """Wait for the rewards, and report what was sampled."""
        spec, engines = self._spec, self._engines
        evaluations = engines.ask("evaluation")
        if count := sum(count for _, count in evaluations):
            runtime_hook.report(eval_reward=sum(rewards for rewards, _ in evaluations) / count)
        results: list[ShareResults] = engines.ask("results")
        self._new_anchors = merged({}, [part.anchors for part in results])
        self._rolled = RolloutSamples(engines.samples(), _report_responses(results))
        runtime_hook.report(**figures([part.lines for part in results], spec.algorithm.max_tokens))
        if spec.rollout.policy == "tail-batching":
            runtime_hook.report(long_round=self._is_long_round, queue=len(self._rounds.queue))
        if not spec.task.is_cheap:
            runtime_hook.report(stopped_rewards=sum(part.stopped for part in results))

    def _next_samples(self) -> RolloutSamples:
        """Return what the next training is on."""
        rolled, self._rolled = self._rolled, RolloutSamples()
        return rolled

    def _trained(self, rolled: RolloutSamples) -> None:
        """Count a rollout: one whose training never came is sampled again."""
        self._count(rolled)

    def _count(self, rolled: RolloutSamples) -> None:
        """Let the job continue with the next prompts."""
        self._rounds.done(rolled.complete)
        self._anchors = merged(self._anchors, [self._new_anchors])

    def _write(self, folder: Path) -> None:
        """Write all that the ranks do not."""
        write_data(folder, DataPosition(self._rounds.position, self._rounds.queue, self._anchors))


def _report_responses(results: Iterable[ShareResults]) -> list[int]:
    """Report every response, and show some; return the numbers of their prompts."""
    for part in results:
        if part.sample is not None:
            runtime_hook.sample(*part.sample)
    lines = sorted((line for part in results for line in part.lines), key=lambda line: line.place)
    for line in lines:
        runtime_hook.trajectory(line.prompt, line.prompt_tokens, (line.tokens,), (), line.seconds, line.switches)
    return sorted({line.prompt for line in lines})
