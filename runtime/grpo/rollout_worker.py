"""The rollout worker of the built-in job: an engine that samples, and the task that rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.engines.interface import Progress, Sampling
from runtime.execution.nodes import threads_of
from runtime.grpo.messages import INFO, STATE, Sampled, Stages, Timed
from runtime.jobs.spec import JobSpec
from runtime.phases import runtime_hook
from runtime.record import Node
from runtime.residency.footprint import Footprint

if TYPE_CHECKING:
    from runtime.sync.streams import Address, Transfer


class RolloutWorker:
    """One engine.

    Args:
        spec: of the job. place, of: which of the job's engines it is, and how many there are. node: its own.
    """

    def __init__(self, spec: JobSpec, place: int, of: int, node: Node) -> None:
        self._spec, self._place, self._of, self._node = spec, place, of, node
        self._sampled = Sampled((), (), ())

    def ready(self) -> bool:
        """The process is there."""
        return True

    def open(self, checkpoint: str | None) -> Timed:
        """Load model, tokenizer and task, and leave the engine as `restore` wants it."""
        stage = Stages()
        with stage("import"):
            from runtime.engines import make_engine
            from runtime.engines.model_files import read_model_files
            from runtime.jobs.models import load_tokenizer, model_directory
            from runtime.jobs.tasks import make_task
            from runtime.residency.staging import WeightStage
        spec, settings = self._spec, self._spec.algorithm
        with stage("model"):
            directory = model_directory(spec.model, spec.seed, Path(spec.folder))
            self._tokenizer = load_tokenizer(directory)
            assert spec.task is not None
            self._task = make_task(spec.task, spec.seed, spec.folder)
            number_bytes = 2 if self._node.gpus else 4  # as `Trainer.weights` gives them, whatever the files hold
            self._stage_bytes = read_model_files(directory).parameters * number_bytes
        with stage("engine"):
            self._engine = make_engine(
                spec.rollout.engine,
                directory,
                max_length=settings.max_prompt_tokens + settings.max_tokens,
                seed=spec.seed,
                threads=threads_of((self._node,)),
                tensor_parallel=spec.rollout.tensor_parallel,
            )
            self._staged = WeightStage(pinned=bool(self._node.gpus))
        with stage("warm-up"):  # a batch of an iteration's size: the first one of its shape takes longer than those after it
            rows = [(0,)] * (-(-settings.prompts_per_iteration // self._of) * settings.group_size)
            self._engine.generate(rows, Sampling(max_tokens=2, ignore_end=True))
        with stage("checkpoint"):
            if checkpoint is not None:
                from safetensors.torch import load_file

                tensors = load_file(Path(checkpoint) / STATE)
                version = int(json.loads((Path(checkpoint) / INFO).read_text())["updates"])
                weights = {name.removeprefix("weights."): t for name, t in tensors.items() if name.startswith("weights.")}
                self._engine.update_weights(weights, version)
        return Footprint(), stage.seconds

    def restore(self) -> Timed:
        """Bring the engine to its device, with the weights that were staged meanwhile."""
        stage = Stages()
        fresh = self._staged.version is not None and self._staged.complete and self._staged.version != self._engine.version
        staged = (self._staged.weights(), self._staged.version) if fresh else ()
        with stage("restore"):
            footprint = self._engine.restore(*staged)
        return footprint, stage.seconds

    def offload(self) -> Timed:
        """Take it off the device."""
        stage = Stages()
        with stage("offload"):
            footprint = self._engine.offload()
        return footprint + Footprint(0, self._staged.resident() or self._stage_bytes), stage.seconds

    def sample(self, iteration: int, worst_case: bool) -> dict[str, float]:
        """Sample and reward this engine's share of the iteration's prompts.

        Returns:
            The number of responses, and means over them.

        Raises:
            RuntimeError: the task gives not as many examples as asked for, a prompt is too long, or a reward is no finite number.
        """
        from runtime.jobs.tasks import score

        assert self._spec.task is not None
        settings = self._spec.algorithm
        first = settings.prompts_per_iteration * self._place // self._of
        last = settings.prompts_per_iteration * (self._place + 1) // self._of
        count, position = last - first, iteration * settings.prompts_per_iteration + first
        examples = self._task.prompts(count, position)
        if len(examples) != count:
            raise RuntimeError(f"{self._spec.task.name}: prompts({count}, {position}) gives {len(examples)} of {count} examples")
        prompts: list[tuple[int, ...]] = []
        for example in examples:
            tokens = tuple(self._tokenizer(example.prompt)["input_ids"])
            if len(tokens) > settings.max_prompt_tokens:
                raise RuntimeError(f"a prompt has {len(tokens)} tokens; max_prompt_tokens is {settings.max_prompt_tokens}")
            prompts += [tokens] * settings.group_size
        sampling = Sampling(
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            seed=(self._spec.seed * 1_000_003 + iteration) * 1_009 + self._place,
            ignore_end=worst_case,
        )
        responses = self._engine.generate(prompts, sampling, progress=_tell)
        rewards = []
        for k, response in enumerate(responses):
            text = str(self._tokenizer.decode(list(response.token_ids), skip_special_tokens=True))
            rewards.append(score(self._task, examples[k // settings.group_size], text))
        self._sampled = Sampled(tuple(prompts), tuple(responses), tuple(rewards))
        of = max(len(responses), 1)
        return {
            "responses": len(responses),
            "reward": sum(rewards) / of,
            "response_tokens": sum(len(response.token_ids) for response in responses) / of,
            "cut_off": sum(len(response.token_ids) == settings.max_tokens for response in responses) / of,
        }

    def take(self) -> Sampled:
        """What the last `sample` has sampled."""
        return self._sampled

    def open_inbox(self) -> Address:
        """Where new weights may be sent to."""
        import ray

        from runtime.sync.streams import Inbox

        self._inbox = Inbox(str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]
        return self._inbox.address

    def stage(self, transfer: Transfer) -> int:
        """Take new weights into host memory; neither device nor permit is needed. Returns the bytes that came over the link.

        Raises:
            RuntimeError: a stream broke; one line. The engine's weights are as they were.
        """
        try:
            return self._inbox.receive(self._place, transfer, self._staged)
        finally:
            self._inbox.close()

    def drop_stage(self) -> None:
        """Forget what was staged."""
        self._staged.close()

    def close(self) -> None:
        """Give everything back."""
        if hasattr(self, "_engine"):
            self._engine.close()
            self._staged.close()


def _tell(progress: Progress) -> None:
    runtime_hook.progress(progress.finished, progress.responses, progress.tokens)
