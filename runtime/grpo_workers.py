"""The workers of the built-in job: an engine that samples and rewards, and a rank that trains."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from runtime.engines.interface import Progress, Response, Sampling
from runtime.execution.nodes import threads_of
from runtime.jobs.spec import JobSpec
from runtime.phases import runtime_hook
from runtime.record import Node
from runtime.residency.footprint import Footprint

_STATE = "training.safetensors"
_INFO = "training.json"
Timed = tuple[Footprint, dict[str, float]]


@dataclass(frozen=True)
class Sampled:
    """What an engine sampled in one iteration.

    Attributes:
        prompts: token ids, one a response: those of a group are alike and stand together.
        responses, rewards: one each.
    """

    prompts: tuple[tuple[int, ...], ...]
    responses: tuple[Response, ...]
    rewards: tuple[float, ...]


class _Stages:
    """Seconds of the parts of a load or offload."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = monotonic()
        yield
        self.seconds[name] = monotonic() - began


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
        stage = _Stages()
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

                tensors = load_file(Path(checkpoint) / _STATE)
                version = int(json.loads((Path(checkpoint) / _INFO).read_text())["updates"])
                weights = {name.removeprefix("weights."): t for name, t in tensors.items() if name.startswith("weights.")}
                self._engine.update_weights(weights, version)
        return Footprint(), stage.seconds

    def restore(self) -> Timed:
        """Bring the engine to its device, with the weights that were staged meanwhile."""
        stage = _Stages()
        fresh = self._staged.version is not None and self._staged.complete and self._staged.version != self._engine.version
        staged = (self._staged.weights(), self._staged.version) if fresh else ()
        with stage("restore"):
            footprint = self._engine.restore(*staged)
        return footprint, stage.seconds

    def offload(self) -> Timed:
        """Take it off the device."""
        stage = _Stages()
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

    def stage(self, weights: tuple[int, dict[str, Any]]) -> None:
        """Take new weights into host memory; neither device nor permit is needed."""
        from runtime.residency.staging import Layout, pieces

        version, tensors = weights
        layout = Layout.of(tensors)
        self._staged.begin(layout, version)
        for offset, piece in pieces(tensors, layout):
            self._staged.receive(version, offset, piece)

    def drop_stage(self) -> None:
        """Forget what was staged."""
        self._staged.close()

    def close(self) -> None:
        """Give everything back."""
        if hasattr(self, "_engine"):
            self._engine.close()
            self._staged.close()


class TrainingWorker:
    """One rank of training.

    Args:
        spec: of the job. rank, world: which rank it is, and how many there are. node: its own.
    """

    def __init__(self, spec: JobSpec, rank: int, world: int, node: Node) -> None:
        self._spec, self._rank, self._world, self._node = spec, rank, world, node
        self._before: Any = None  # the state that a profile is to leave

    def ready(self) -> bool:
        """The process is there."""
        return True

    def meeting(self) -> str | None:
        """Where the ranks meet: at rank 0; nowhere where it is alone."""
        if self._world == 1:
            return None
        import ray

        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"tcp://{host}:{probe.getsockname()[1]}"

    def open(self, meeting: str | None, checkpoint: str | None) -> Timed:
        """Load model and optimizer, and those of a checkpoint."""
        stage = _Stages()
        with stage("import"):
            from runtime.jobs.models import model_directory
            from runtime.training.trainer import Trainer
        with stage("model"):
            directory = model_directory(self._spec.model, self._spec.seed, Path(self._spec.folder))
            place = {"rank": self._rank, "world": self._world}
            self._trainer = Trainer(directory, self._spec.algorithm, rendezvous=meeting, threads=threads_of((self._node,)), **place)
        if checkpoint is not None:
            with stage("checkpoint"):
                from safetensors.torch import load_file

                info = json.loads((Path(checkpoint) / _INFO).read_text())
                self._trainer.load_state(load_file(Path(checkpoint) / _STATE), info)
        return Footprint(), stage.seconds

    def restore(self, keep: bool, back: bool) -> Timed:
        """Bring the state to the device.

        Args:
            keep: a copy of it, for later; at the first time. back: go back to that copy.
        """
        stage = _Stages()
        with stage("restore"):
            footprint = self._trainer.restore()
        if back:
            tensors, info = self._before
            self._trainer.load_state(tensors, info)
        if not keep:
            self._before = None
        elif self._before is None:
            self._before = self._trainer.state(everywhere=True)
        return footprint, stage.seconds

    def offload(self) -> Timed:
        """Take it off the device."""
        stage = _Stages()
        with stage("offload"):
            footprint = self._trainer.offload()
        return footprint, stage.seconds

    def update(self, *sampled: Sampled) -> dict[str, float]:
        """Train on an iteration's responses.

        Raises:
            RuntimeError: they were sampled with other weights than those that are trained.
            TrainingError: something is not finite.
        """
        from runtime.training.batch import make_batch

        prompts = [prompt for part in sampled for prompt in part.prompts]
        responses = [response for part in sampled for response in part.responses]
        rewards = [reward for part in sampled for reward in part.rewards]
        version = self._trainer.updates
        versions = sorted({response.version for response in responses})
        if versions != [version]:
            raise RuntimeError(f"responses were sampled with version {versions} of the weights, trained is version {version}")
        batch = make_batch(prompts, responses, rewards, self._spec.algorithm.group_size)
        metrics = self._trainer.update(batch)
        return metrics | {"sampled_version": float(versions[0]), "trained_version": float(version)}

    def weights(self) -> tuple[int, dict[str, Any]]:
        """The weights and their version; on rank 0."""
        return self._trainer.updates, self._trainer.weights()

    def updates(self) -> int:
        """Updates that are in the weights."""
        return self._trainer.updates

    def write(self, folder: str) -> None:
        """Write a checkpoint; every rank is called, rank 0 writes."""
        from safetensors.torch import save

        from rollmux_env.files import write_whole

        tensors, info = self._trainer.state()
        if self._rank == 0:
            write_whole(Path(folder) / _STATE, save(tensors))
            write_whole(Path(folder) / _INFO, json.dumps(info))

    def close(self) -> None:
        """Give everything back."""
        if hasattr(self, "_trainer"):
            self._trainer.close()


def _tell(progress: Progress) -> None:
    runtime_hook.progress(progress.finished, progress.responses, progress.tokens)
