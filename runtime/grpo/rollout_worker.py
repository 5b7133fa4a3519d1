"""The rollout worker of the built-in job: an engine that samples, and rewards beside it or in reward workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rollmux_segment import Footprint

from policies.rollout.rounds import Standing
from runtime.engines.interface import Engine, Response, Sampling
from runtime.engines.memory import SEQUENCES
from runtime.gpus import OwnOfCuda
from runtime.grpo.messages import Results, Sampled, Status, Timed, stage, timed
from runtime.grpo.rewards import Rewards
from runtime.grpo.shares import Prompts, RunningShare, Share, rounds_of
from runtime.grpo.state import read_data, stage_weights
from runtime.jobs.spec import JobSpec
from runtime.jobs.tasks import Example
from runtime.machine import Node, memory_id, threads_of
from runtime.phases import WorkerHandle, runtime_hook

if TYPE_CHECKING:
    from rollmux_env.timing.replica import ReplicaTiming
    from runtime.residency.staging import Landed
    from runtime.sync.wire import Address, Transfer


_MEASUREMENTS = 2  # of an engine's speed
_MOST_MEASURED = 16  # sequences of a measured batch; larger ones are extrapolated
_NEVER_FULL = 2**40  # tokens of the cache


class RolloutWorker:
    """One engine.

    Args:
        spec: of the job. place, of: which of the job's engines it is, and how many there are. node: its own.
        reward_workers: of the job, if it has any. together: engines of its size, which share a rollout; None: all of them.
    """

    def __init__(
        self,
        spec: JobSpec,
        place: int,
        of: int,
        node: Node,
        reward_workers: Sequence[WorkerHandle] = (),
        together: int | None = None,
    ) -> None:
        self._spec, self._together, self._node = spec, together or of, node
        shares = rounds_of(spec).next().shares(self._together)
        self._batch = max(1, max(len(share.prompts) * share.responses for share in shares))  # responses of a round
        count = len(reward_workers)  # each engine begins with another one
        self._reward_workers = [reward_workers[(place * count // of + k) % count] for k in range(count)]
        self._evaluated: list[Future[float]] = []
        self._shares: list[RunningShare] = []
        self._sampled: list[Sampled] = []
        self._worst_case = True  # no weights come that are to stay
        self._dropped = False  # the engine sleeps without weights: those that are staged will come in their place

    def ready(self) -> bytes:
        """The process is there; workers who say the same can read each other's memory, if they say anything."""
        return memory_id()

    def open(self, checkpoint: str | None, is_stager: bool = True) -> Timed:
        """Load model, tokenizer and task, and leave the engine as `restore` wants it.

        Args:
            checkpoint: a folder. is_stager: it receives new weights for the engines of its machine; those of the checkpoint now.
        """
        stages: dict[str, float] = {}
        self._rewards = Rewards(self._spec, self._reward_workers)  # its processes start while the engine does
        self._own = OwnOfCuda(len(self._node.gpus))
        with stage(stages, "import"):
            import torch

            from runtime.engines import make_engine, why_torch
            from runtime.engines.model_files import read_model_files
            from runtime.engines.pretrained import load_tokenizer
            from runtime.jobs.models import model_directory
            from runtime.residency.staging import StageReader, WeightStage
        spec, settings = self._spec, self._spec.algorithm
        with stage(stages, "model"):
            directory = model_directory(spec.model, spec.seed, Path(spec.folder))
            self._tokenizer = load_tokenizer(directory)
            self._prompts = Prompts(spec, self._tokenizer, self._rewards)
            number_bytes = 2 if self._node.gpus else 4  # as `Trainer.weights` gives them, whatever the files hold
            files = read_model_files(directory)
            self._stage_bytes = files.parameters * number_bytes if is_stager else 0
        if why := why_torch(spec.rollout.engine, bool(self._node.gpus), files.head):
            runtime_hook.warn(why)
        with stage(stages, "engine"):
            self._engine = make_engine(
                spec.rollout.engine,
                directory,
                max_length=settings.max_prompt_tokens + settings.max_tokens,
                seed=spec.seed,
                threads=threads_of(self._node.cores),
                tensor_parallel=max(1, len(self._node.gpus)) if spec.rollout.sizes else spec.rollout.tensor_parallel,
                options=self._engine_options(),
            )
            self._stage = WeightStage(pinned=bool(self._node.gpus))
            self._staged = StageReader(bool(self._node.gpus), self._stage)
        with stage(stages, "warm-up"):  # a batch of an iteration's size: the first of its shape takes longer than those after it
            self._engine.generate([(0,)] * self._batch, Sampling(max_tokens=2, ignore_end=True))
            self._rewards.wait_until_ready()
        if self._node.gpus:
            self._own.added(self._engine.stay())  # as long as the device is this engine's alone, whatever its size
        if spec.rollout.sizes:
            with stage(stages, "speed"):
                lengths = settings.max_prompt_tokens, settings.max_tokens
                self._timing = _timing_of(self._engine, files.vocabulary, self._batch, *lengths)
        with stage(stages, "checkpoint"):
            if checkpoint is not None:
                self._rewards.learn(read_data(Path(checkpoint)).anchors)
                if is_stager:
                    stage_weights(Path(checkpoint), self._stage, torch.bfloat16 if self._node.gpus else torch.float32)
        return Footprint(), stages

    def _engine_options(self) -> dict[str, Any]:
        """Those of the job file. On GPUs an engine has room for the responses that a round gives it, and for no others."""
        most = {"max_num_seqs": min(self._batch, SEQUENCES)} if self._node.gpus else {}
        return most | self._spec.rollout.engine_options.values_set()

    def timing(self) -> ReplicaTiming:
        """What the engine costs, of a job with engines of several sizes."""
        return self._timing

    def restore(self) -> Timed:
        """Bring the engine to its device, with the weights that were staged meanwhile."""
        if self._staged.landed is not None and (self._dropped or self._staged.landed.version != self._engine.version):
            with self._staged.reading() as staged:
                restored = timed("restore", self._engine.restore, *staged)
        else:
            restored = timed("restore", self._engine.restore)
        self._dropped = False
        return restored

    def renew(self) -> Timed:
        """Let the engine, which is on its device, take the weights that are staged."""
        stages: dict[str, float] = {}
        with self._staged.reading() as staged, stage(stages, "checkpoint"):
            self._engine.update_weights(*staged)
        return Footprint(), stages

    def offload(self) -> Timed:
        """Take it off the device. Weights that are staged too, and so can come back from there, are not kept twice."""
        landed = self._staged.landed
        drop = not self._worst_case and landed is not None and landed.version == self._engine.version
        footprint, seconds = timed("offload", self._engine.offload, drop)
        self._dropped = self._dropped or drop
        return self._whole(footprint), seconds

    def stay(self) -> Timed:
        """Leave it on the device until the next rollout."""
        footprint, seconds = timed("stay", self._engine.stay)
        return self._whole(footprint), seconds

    def _whole(self, footprint: Footprint) -> Footprint:
        """What the process has, from what the engine does."""
        staged = self._stage.footprint()
        staged = (staged if staged.host else Footprint(host=self._stage_bytes)) + self._staged.footprint()
        return self._own.added(footprint) + staged

    def begin(self, iteration: int, worst_case: bool, total: int, shares: Sequence[Share], anchors: Mapping[str, float]) -> None:
        """Take up this engine's shares of a round.

        Args:
            total: responses that all engines launch. anchors: of the rewards' timeout, that have grown in the iteration before.

        Raises:
            RuntimeError: the task gives not as many examples as asked for, or a prompt is too long.
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
        self._worst_case = worst_case
        self._evaluated = []
        self._preempted = self._engine.preemptions
        self._shares = [self._running(share) for share in shares]

    def sample(self) -> tuple[int, ...]:
        """Sample and reward the shares that are here, until they are over or the run says stop.

        With `rollout.interruptible` new weights are taken as soon as they have landed; responses go on behind their tokens.

        Returns:
            Places of the shares that are not over.
        """
        while True:
            over = self._sample_on()
            if all(share.over for share in self._shares) or not self._take_landed():
                return over

    def _has_landed(self) -> bool:
        """Whether newer weights than the engine's are staged, and responses are to go on with them."""
        landed = self._staged.landed
        newer = landed is not None and landed.version != self._engine.version
        return self._spec.rollout.interruptible and not self._worst_case and newer

    def _take_landed(self) -> bool:
        """Go on with them; whether there were any."""
        if not self._has_landed():
            return False
        self.renew()
        return True

    def _sample_on(self) -> tuple[int, ...]:
        """As `sample`, until new weights have landed too."""
        rows = [(share, key) for share in self._shares for key in share.running]
        row_of = {(share.place, *key): row for row, (share, key) in enumerate(rows)}

        def ended(responses: Sequence[Response]) -> list[int]:
            own = ((rows[response.prompt], response) for response in responses)
            return [row_of[share.place, *other] for (share, key), one in own for other in share.finished(key, one)]

        responses = self._engine.generate(
            [share.prompts[key[0]].tokens for share, key in rows],
            self._sampling,
            progress=lambda step: runtime_hook.progress(self._done + step.finished, self._total, step.tokens),
            stop=lambda: runtime_hook.stops() or self._has_landed(),
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

    def status(self) -> tuple[Status, ...]:
        """Of the shares that are here, of one response each."""
        return tuple(Status(share.place, share.tokens_so_far(), share.end_s) for share in self._shares)

    def standings(self) -> tuple[int, dict[int, Standing]]:
        """Responses that have finished or were dropped here, and how far the prompts of the shares that are here are."""
        return self._done, {prompt: one for share in self._shares for prompt, one in share.standings().items()}

    def end(self, complete: Collection[int]) -> None:
        """The shares that are here are over with these of their prompts."""
        for share in self._shares:
            self._done += len(share.running)
            share.end(complete)

    def preemptions(self) -> int:
        """How often a full cache has put a response back since this round began."""
        return self._engine.preemptions - self._preempted

    def leave(self, places: Collection[int] | None = None) -> tuple[Share, ...]:
        """Give up the shares that are not over; of those at some places."""
        unfinished = [share for share in self._shares if not share.over and (places is None or share.place in places)]
        self._shares = [share for share in self._shares if share not in unfinished]
        return tuple(share.packed() for share in unfinished)

    def join(self, places: Collection[int], *messages: tuple[Share, ...]) -> None:
        """Take over those of the shares given that are at these places."""
        self._shares += [self._running(share) for shares in messages for share in shares if share.place in places]

    def evaluate(self, place: int, of: int, worst_case: bool) -> None:
        """Sample a greedy response to this engine's share of the held-out prompts.

        Random streams, and so what is trained on, are as they would be without it.

        Args:
            place, of: which of the engines that take part it is, and how many there are.
        """
        prompts = self._prompts.held_out[place::of]
        sampling = Sampling(temperature=0.0, max_tokens=self._spec.algorithm.max_tokens, ignore_end=worst_case)
        for first in range(0, len(prompts), self._batch):
            batch = prompts[first : first + self._batch]
            responses = self._engine.generate([prompt.tokens for prompt in batch], sampling)
            self._evaluated += [self._rewarded(prompt.example, one, False) for prompt, one in zip(batch, responses, strict=True)]

    def evaluation(self) -> tuple[float, int]:
        """Of the held-out prompts: (sum of rewards, responses).

        Raises:
            RuntimeError: a reward is none.
        """
        rewards, self._evaluated = self._evaluated, []
        return sum(reward.result() for reward in rewards), len(rewards)

    def results(self) -> Results:
        """Of the shares that ended here, when all of their rewards are there.

        Raises:
            RuntimeError: a reward is no finite number.
        """
        self._sampled = [share.sampled() for share in self._shares]
        lines = [line for share, part in zip(self._shares, self._sampled, strict=True) for line in share.lines(part)]
        return Results(lines, self._sample(), *self._rewards.news())

    def _sample(self) -> tuple[str, list[str], list[float]] | None:
        """The first prompt that was sampled here, the responses to it, and their rewards."""
        part = next((part for part in self._sampled if part.prompts), None)
        if part is None:
            return None
        count = min(self._spec.algorithm.group_size, len(part.prompts))
        texts = [str(self._tokenizer.decode([*one.token_ids], skip_special_tokens=True)) for one in part.responses[:count]]
        return str(self._tokenizer.decode([*part.prompts[0]])), texts, [*part.rewards[:count]]

    def take(self) -> list[Sampled]:
        """What is to be trained on of it."""
        return self._sampled

    def _running(self, share: Share) -> RunningShare:
        """A share with its prompts."""
        return RunningShare(share, self._prompts.numbered(share.round.prompts), self._rewarded)

    def _rewarded(self, example: Example, response: Response, learning: bool = True) -> Future[float]:
        tokens = list(response.token_ids)
        return self._rewards.submit(example, lambda: str(self._tokenizer.decode(tokens, skip_special_tokens=True)), learning)

    def open_inbox(self) -> Address:
        """Where new weights may be sent to."""
        import ray

        from runtime.sync.streams import Inbox

        self._inbox = Inbox(str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]
        return self._inbox.address

    def stage(self, place: int, transfer: Transfer) -> int:
        """Take new weights into host memory; neither device nor permit is needed. Returns the bytes that came over the link.

        Args:
            place: which of the receivers this is.

        Raises:
            RuntimeError: a stream broke; one line. The engine's weights are as they were.
        """
        try:
            return self._inbox.receive(place, transfer, self._stage)
        finally:
            self._stage.end()
            self._inbox.close()

    def landed(self) -> Landed | None:
        """Weights that are staged here for the engines of this machine."""
        return self._stage.landed()

    def know(self, landed: Landed | None) -> None:
        """Weights have been staged for it, perhaps by another worker; or they are forgotten, and the engine has its own."""
        self._staged.landed = landed
        if landed is None:
            self._staged.close()
            self._stage.close()

    def close(self) -> None:
        """Give everything back."""
        if hasattr(self, "_rewards"):
            self._rewards.close()
        if hasattr(self, "_engine"):
            self._engine.close()
            self._staged.close()
            self._stage.close()


def _timing_of(engine: Engine, vocabulary: int, batch: int, prompt: int, response: int) -> ReplicaTiming:
    """How fast an engine is, measured at a few points: policies that choose the size of engines forecast with it.

    Its cache counts as never full.

    Args:
        vocabulary: of the model. batch: sequences that it samples at a time. prompt, response: tokens of the longest ones.

    Raises:
        InputError: it does not hold such a batch.
    """
    import torch

    from runtime.calibration import Grid, Measurer, clock, fit, measure

    every = Grid.up_to(min(batch, _MOST_MEASURED), prompt, response)
    grid = Grid(*(tuple(sorted({points[0], points[-1]})) for points in (every.batches, every.contexts, every.prompts)))
    now = clock() if torch.cuda.is_available() else perf_counter  # seconds as they pass: threads share the work
    return fit(measure(Measurer(engine, vocabulary, 0, now), grid, _MEASUREMENTS, ()), _NEVER_FULL)
