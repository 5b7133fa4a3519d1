"""Rollout worker of the built-in job: an engine that samples, with rewards next to it or in reward workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rollmux_segment import Footprint

from policies.rollout.rounds import Standing
from runtime.engines.interface import Engine, Response, Sampling
from runtime.engines.memory import SEQUENCES
from runtime.gpus import CudaOverhead
from runtime.grpo.engine_residency import EngineResidency
from runtime.grpo.messages import ResponseStatus, ShareResults, ShareSamples, Timed, stage
from runtime.grpo.rewards import Rewards
from runtime.grpo.shares import EngineShare, Prompts, RunningShare, rounds_of
from runtime.grpo.state import read_data, stage_weights
from runtime.jobs.spec import TaskJob
from runtime.jobs.tasks import TaskExample
from runtime.machine import Node, memory_id, threads_of
from runtime.phases import WorkerHandle, runtime_hook

if TYPE_CHECKING:
    from rollmux_env.timing.replica import ReplicaTiming


_MEASUREMENTS = 2  # number of measurements of an engine's speed
_MOST_MEASURED = 16  # largest number of sequences in a measured batch; larger ones are extrapolated


class RolloutWorker:
    """Worker with one engine.

    Args:
        spec: Specification of the job.
        place: Number of the engine among the job's engines.
        of: Number of the job's engines.
        node: Part of a node that belongs to this engine.
        reward_workers: Reward workers of the job.
        together: Number of engines of the same size, which share a rollout. None means all engines.

    Attributes:
        residency: Weights of the engine, on its device or off it, after `open`.
    """

    residency: EngineResidency

    def __init__(
        self,
        spec: TaskJob,
        place: int,
        of: int,
        node: Node,
        reward_workers: Sequence[WorkerHandle] = (),
        together: int | None = None,
    ) -> None:
        self._spec, self._together, self._node = spec, together or of, node
        shares = rounds_of(spec).next().shares(self._together)
        self._batch = max(1, max(len(share.prompts) * share.responses for share in shares))  # responses of a round
        count = len(reward_workers)  # each engine begins with a different one
        self._reward_workers = [reward_workers[(place * count // of + k) % count] for k in range(count)]
        self._evaluated: list[Future[float]] = []
        self._shares: list[RunningShare] = []
        self._sampled: list[ShareSamples] = []

    def ready(self) -> bytes:
        """Return the identity of the machine's memory. Workers with the same one, if not empty, can read each other's memory."""
        return memory_id()

    def open(self, checkpoint: str | None, is_stager: bool = True) -> Timed:
        """Load model, tokenizer and task, and leave the engine in a state from which `residency.restore` works.

        Args:
            checkpoint: Folder of a checkpoint to continue from, or None.
            is_stager: Whether this worker receives new weights for all engines of its machine. It then stages those of the
                checkpoint.
        """
        stages: dict[str, float] = {}
        self._rewards = Rewards(self._spec, self._reward_workers)  # its processes start while the engine starts
        process = CudaOverhead(len(self._node.gpus))
        with stage(stages, "import"):
            import torch

            from runtime.engines import why_torch
            from runtime.engines.model_files import read_model_files
            from runtime.engines.pretrained import load_tokenizer
            from runtime.jobs.models import model_directory
            from runtime.residency.staging import StageReader, WeightStage
        spec, settings = self._spec, self._spec.algorithm
        with stage(stages, "model"):
            directory = model_directory(spec.model, spec.seed, Path(spec.folder))
            self._tokenizer = load_tokenizer(directory)
            self._prompts = Prompts(spec, self._tokenizer, self._rewards)
            number_bytes = 2 if self._node.gpus else 4  # as in `Trainer.weights`, independent of the model's files
            files = read_model_files(directory)
            stage_bytes = files.parameters * number_bytes if is_stager else 0
        if why := why_torch(spec.rollout.engine, bool(self._node.gpus), files.head):
            runtime_hook.warn(why)
        with stage(stages, "engine"):
            self._engine = self._make_engine(directory)
            weights = WeightStage(pinned=bool(self._node.gpus))
            reader = StageReader(bool(self._node.gpus), weights)
            self.residency = EngineResidency(self._engine, process, weights, reader, stage_bytes)
        with stage(stages, "warm-up"):  # with a batch of an iteration's size: the first one of its shape takes longer
            self._engine.generate([(0,)] * self._batch, Sampling(max_tokens=2, ignore_end=True))
            self._rewards.wait_until_ready()
        if self._node.gpus:
            process.added(self._engine.stay())  # while this engine has the device to itself, whatever its size
        if spec.rollout.sizes:
            with stage(stages, "speed"):
                lengths = settings.max_prompt_tokens, settings.max_tokens
                self._timing = _timing_of(self._engine, files.vocabulary, self._batch, *lengths)
        with stage(stages, "checkpoint"):
            if checkpoint is not None:
                self._rewards.learn(read_data(Path(checkpoint)).anchors)
                if is_stager:
                    stage_weights(Path(checkpoint), weights, torch.bfloat16 if self._node.gpus else torch.float32)
        return Footprint(), stages

    def _make_engine(self, directory: Path) -> Engine:
        """Load the model into an engine. On GPUs vLLM has room for exactly the responses of a round."""
        from runtime.engines import make_engine

        spec, settings = self._spec, self._spec.algorithm
        return make_engine(
            spec.rollout.engine,
            directory,
            max_length=settings.max_prompt_tokens + settings.max_tokens,
            seed=spec.seed,
            threads=threads_of(self._node.cores),
            tensor_parallel=max(1, len(self._node.gpus)) if spec.rollout.sizes else spec.rollout.tensor_parallel,
            options=spec.rollout.engine_options.values_set(),
            sequences=min(self._batch, SEQUENCES) if self._node.gpus else None,
        )

    def timing(self) -> ReplicaTiming:
        """Return the timing of the engine. Only for a job with engines of several sizes."""
        return self._timing

    def begin(
        self, iteration: int, worst_case: bool, total: int, shares: Sequence[EngineShare], anchors: Mapping[str, float]
    ) -> None:
        """Begin this engine's shares of a round.

        Args:
            iteration: Number of the iteration.
            worst_case: Whether every response has its largest length, as in a profile.
            total: Number of responses that all engines launch.
            shares: Shares of this engine.
            anchors: Anchors of the rewards' timeout that have grown in the iteration before, in seconds by test.

        Raises:
            RuntimeError: The task returned fewer examples than needed, or a prompt is too long.
        """
        settings = self._spec.algorithm
        self._total, self._done = total, 0
        self._sampling = Sampling(
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            seed=self._spec.seed * 1_000_003 + iteration,
            ignore_end=worst_case,
        )
        self._rewards.learn(anchors)
        self._rewards.learning = not worst_case
        self._worst_case = self.residency.keeps_weights = worst_case  # a profile's rollouts use no staged weights
        self._evaluated = []
        self._preempted = self._engine.preemptions
        self._shares = [self._running(share) for share in shares]

    def sample(self) -> tuple[int, ...]:
        """Sample and reward the shares of this engine until they are over or the run wants a stop.

        With `rollout.interruptible`, new weights are taken as soon as they are staged, and responses continue with them.

        Returns:
            Places of the shares that are not over.
        """
        while True:
            over = self._sample_on()
            if all(share.over for share in self._shares) or not self._is_interrupted():
                return over
            self.residency.renew()

    def _is_interrupted(self) -> bool:
        """Return whether responses should continue with weights that are newer than the engine's."""
        return self._spec.rollout.interruptible and not self._worst_case and self.residency.has_new_weights

    def _sample_on(self) -> tuple[int, ...]:
        """Sample as `sample`, but also stop when new weights are staged."""
        rows = [(share, key) for share in self._shares for key in share.running]
        row_of = {(share.place, *key): row for row, (share, key) in enumerate(rows)}

        def ended(responses: Sequence[Response]) -> list[int]:
            own = ((rows[response.prompt], response) for response in responses)
            return [row_of[share.place, *other] for (share, key), one in own for other in share.finished(key, one)]

        responses = self._engine.generate(
            [share.prompts[key[0]].tokens for share, key in rows],
            self._sampling,
            progress=lambda step: runtime_hook.progress(self._done + step.finished, self._total, step.tokens),
            stop=lambda: runtime_hook.stops() or self._is_interrupted(),
            resume=[replace(share.begun[key], prompt=row) for row, (share, key) in enumerate(rows) if key in share.begun],
            streams=[share.stream(key) for share, key in rows],
            ended=ended,
        )
        self._done += len(rows)
        for share in self._shares:
            running = set(share.running)
            share.begun = {key: one for (mine, key), one in zip(rows, responses, strict=True) if mine is share and key in running}
            self._done -= len(running)
        return tuple(share.place for share in self._shares if not share.over)

    def status(self) -> tuple[ResponseStatus, ...]:
        """Return the status of each share at this engine. Only for shares of one response."""
        return tuple(ResponseStatus(share.place, share.tokens_so_far(), share.end_s) for share in self._shares)

    def standings(self) -> tuple[int, dict[int, Standing]]:
        """Return how many responses have finished or were dropped here, and the standing of each prompt of the shares here."""
        return self._done, {prompt: one for share in self._shares for prompt, one in share.standings().items()}

    def end(self, complete: Collection[int]) -> None:
        """End the shares at this engine. Of their prompts, those in `complete` count."""
        for share in self._shares:
            self._done += len(share.running)
            share.end(complete)

    def preemptions(self) -> int:
        """Return how often a full cache has put a response back since this round began."""
        return self._engine.preemptions - self._preempted

    def leave(self, places: Collection[int] | None = None) -> tuple[EngineShare, ...]:
        """Give up the unfinished shares, or only those at some places, and return them."""
        unfinished = [share for share in self._shares if not share.over and (places is None or share.place in places)]
        self._shares = [share for share in self._shares if share not in unfinished]
        return tuple(share.packed() for share in unfinished)

    def join(self, places: Collection[int], *messages: tuple[EngineShare, ...]) -> None:
        """Take over those of the given shares that have one of these places."""
        self._shares += [self._running(share) for shares in messages for share in shares if share.place in places]

    def evaluate(self, place: int, of: int, worst_case: bool) -> None:
        """Sample a greedy response to this engine's part of the held-out prompts.

        It does not influence random streams, so training has the same samples as without it.

        Args:
            place: Number of this engine among those that take part.
            of: Number of engines that take part.
            worst_case: Whether every response has its largest length, as in a profile.
        """
        prompts = self._prompts.held_out[place::of]
        sampling = Sampling(temperature=0.0, max_tokens=self._spec.algorithm.max_tokens, ignore_end=worst_case)
        for first in range(0, len(prompts), self._batch):
            batch = prompts[first : first + self._batch]
            responses = self._engine.generate([prompt.tokens for prompt in batch], sampling)
            self._evaluated += [self._rewarded(prompt.example, one, False) for prompt, one in zip(batch, responses, strict=True)]

    def evaluation(self) -> tuple[float, int]:
        """Return the sum of rewards and the number of responses of the last evaluation.

        Raises:
            RuntimeError: A reward could not be computed.
        """
        rewards, self._evaluated = self._evaluated, []
        return sum(reward.result() for reward in rewards), len(rewards)

    def results(self) -> ShareResults:
        """Wait for the rewards of the shares that ended here, and report about them.

        Raises:
            RuntimeError: A reward could not be computed or is not a finite number.
        """
        self._sampled = [share.sampled() for share in self._shares]
        lines = [line for share, part in zip(self._shares, self._sampled, strict=True) for line in share.lines(part)]
        return ShareResults(lines, self._sample(), *self._rewards.grown_anchors())

    def _sample(self) -> tuple[str, list[str], list[float]] | None:
        """Return the first prompt that was sampled here, the responses to it, and their rewards."""
        part = next((part for part in self._sampled if part.prompts), None)
        if part is None:
            return None
        count = min(self._spec.algorithm.group_size, len(part.prompts))
        texts = [str(self._tokenizer.decode([*one.token_ids], skip_special_tokens=True)) for one in part.responses[:count]]
        return str(self._tokenizer.decode([*part.prompts[0]])), texts, [*part.rewards[:count]]

    def take(self) -> list[ShareSamples]:
        """Return the samples of the last `results`, to train on."""
        return self._sampled

    def _running(self, share: EngineShare) -> RunningShare:
        """Return a share together with its prompts."""
        return RunningShare(share, self._prompts.numbered(share.round.prompts), self._rewarded)

    def _rewarded(self, example: TaskExample, response: Response, learning: bool = True) -> Future[float]:
        tokens = list(response.token_ids)
        return self._rewards.submit(example, lambda: str(self._tokenizer.decode(tokens, skip_special_tokens=True)), learning)

    def close(self) -> None:
        """Release everything."""
        if hasattr(self, "_rewards"):
            self._rewards.close()
        if hasattr(self, "residency"):
            self.residency.close()
        elif hasattr(self, "_engine"):
            self._engine.close()


def _timing_of(engine: Engine, vocabulary: int, batch: int, prompt: int, response: int) -> ReplicaTiming:
    """Measure the speed of an engine at a few points. Policies that choose the size of engines use it in forecasts.

    Args:
        engine: The engine.
        vocabulary: Size of the model's vocabulary, in tokens.
        batch: Number of sequences that it samples at a time.
        prompt: Length of the longest prompt, in tokens.
        response: Length of the longest response, in tokens.

    Raises:
        InputError: The engine cannot hold such a batch.
    """
    import torch

    from runtime.calibration import Grid, Measurer, clock, fit, measure

    every = Grid.up_to(min(batch, _MOST_MEASURED), prompt, response)
    grid = Grid(*(tuple(sorted({points[0], points[-1]})) for points in (every.batches, every.contexts, every.prompts)))
    now = clock() if torch.cuda.is_available() else perf_counter  # on a CPU wall-clock seconds, since threads share the work
    return fit(measure(Measurer(engine, vocabulary, 0, now), grid, _MEASUREMENTS, ()), engine.kv_tokens)
