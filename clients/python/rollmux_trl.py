"""TRL's GRPOTrainer as a job that takes turns: `rollmux_trl.GRPOTrainer` instead of `trl.GRPOTrainer`.

    with rollmux_trl.attach() as job:
        trainer = rollmux_trl.GRPOTrainer(model=..., reward_funcs=..., args=config, job=job)
        trainer.train(resume_from_checkpoint=rollmux_trl.last_checkpoint(config.output_dir))

- The turn of `init` lasts from the construction of the trainer to the start of its training, and includes loading a checkpoint.
  With a vLLM server, the first weights follow in a turn of `sync`.
- Between its turns a job has nothing on its devices. Parameters, gradients and optimizer state of the trainer wait in host memory,
  and so do reward models. The gradient buckets of DistributedDataParallel are freed (`rollmux_offload`; not with DeepSpeed, which
  keeps its state elsewhere). vLLM in the trainer's process sleeps (`vllm_enable_sleep_mode=True`). Without a service everything
  stays where it is.
- A turn of `rollout` covers TRL's `_generate_and_score_completions`: weights for vLLM, sampling, rewards, log-probs.
- A turn of `training` lasts from there to the last optimizer step before the next generation, for any values of
  `gradient_accumulation_steps`, `steps_per_generation` and `num_iterations`. Both turns together are an iteration.
- A checkpoint that is older than the service's count sets the job back. The iterations since then are done again and count once.
- A checkpoint that has all iterations already ends the job as done: nothing is trained beyond them.
- An evaluation is a rollout that counts as no iteration. In the middle of a training it needs no separate turn, because it runs on
  the devices of the training.
- With a vLLM server (`vllm_mode="server"`), rollouts run on its devices and trainings on the trainer's. A turn of `rollout` is then
  over when the responses are there, because rewards and log-probs may need the trainer's devices. New weights need both and are
  sent in a turn of `sync`. An evaluation that is due then needs both too, and runs in the same turn.

With several processes the first one asks the service, and all wait for it. A checkpoint is saved at the end of a training's turn.
Anything saved outside of one, for example by `save_model` after the training, has a separate turn, as an evaluation does. Until
then the model has no memory: `with trainer.turn():` is needed for other uses of `trainer.model`.
Written for TRL 1.16.0 from PyPI.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import rollmux_client
import rollmux_devices
import rollmux_processes
import torch
from accelerate import PartialState
from rollmux_offload import GradientBuckets, Offloader, state_of
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput
from trl.trainer import grpo_trainer

__all__ = ["GRPOTrainer", "attach", "last_checkpoint"]

_LOG = logging.getLogger("rollmux_client")
_SAMPLED = ("reward", "frac_reward_zero_std", "completions/clipped_ratio", "sampling/sampling_logp_difference/mean")
"""TRL's names of the metrics of a rollout by which the service sees unsound training."""
_WAITS = timedelta(days=365)  # longest wait for a turn, in effect without limit


def attach(job: str | None = None) -> rollmux_client.Job:
    """Attach as `rollmux_client.attach` does, once for all processes of a launcher such as torchrun or accelerate."""
    if os.environ.get("RANK", "0") != "0":
        return rollmux_client.Job(None, job or "")
    return rollmux_client.attach(job)


def last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the path of the last checkpoint in TRL's output folder that is whole, or None without one.

    A process that is killed while it saves leaves a part of a checkpoint, with which no later process could continue.

    Args:
        folder: The `output_dir` of the trainer. It may be missing.
    """
    checkpoints = [path for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.name.rpartition("-")[2].isdecimal()]
    newest_first = sorted(checkpoints, key=lambda path: -int(path.name.rpartition("-")[2]))
    return next((str(path) for path in newest_first if _is_whole(path)), None)


def _is_whole(checkpoint: Path) -> bool:
    """Return whether a checkpoint has the state of the trainer, which is written last."""
    try:
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text())
    except (OSError, ValueError):
        _LOG.warning("%s is left out, because it is not whole", checkpoint)
        return False
    return True


class _Complete(Exception):
    """The checkpoint from which a training continues has all of its iterations."""


class GRPOTrainer(grpo_trainer.GRPOTrainer):
    """`trl.GRPOTrainer` in turns with other jobs. All other arguments are those of TRL.

    Args:
        job: Job from `attach`.
    """

    args: Any  # has more fields than transformers declares
    model: Any
    vllm_generation: Any

    def __init__(self, *arguments: Any, job: rollmux_client.Job, **options: Any) -> None:
        self._job = job
        self._turn: rollmux_client.PhaseContext | None = None  # present turn
        self._rollout: rollmux_client.PhaseContext | None = None  # present turn if it is one of rollout that counts
        self._training: rollmux_client.PhaseContext | None = None  # present turn if it is one of training
        self._evaluates: rollmux_client.PhaseContext | None = None  # turn of sync in which an evaluation follows
        self._offloader: Offloader | None = None
        self._buckets: GradientBuckets | None = None
        several = PartialState().num_processes > 1  # this also connects the launcher's processes
        self._processes = torch.distributed.new_group(backend="gloo", timeout=_WAITS) if several else None
        self._is_attached = self._agreed(job.lease is not None)
        self._name_ranks()
        self._init: rollmux_client.PhaseContext | None = self._begin("init")
        super().__init__(*arguments, **options)
        self.add_callback(_Ends(self))
        self._wait_for_all()  # the first process alone has made the output folder, in which all look for a checkpoint

    def train(self, *arguments: Any, **options: Any) -> Any:
        """Train as TRL does.

        Raises:
            Interrupted: The service asks the job to stop, after a checkpoint has been saved, or to move and continue from the last
                checkpoint.
            Mismatch: The job's entry has another number of iterations, or the checkpoint has more than the service has counted.
        """
        try:
            outcome = super().train(*arguments, **options)
        except _Complete:
            self.is_in_train = False
            return TrainOutput(self.state.global_step, 0.0, {})
        if self._agreed(self._job.stopping and self.state.global_step < self.state.max_steps):
            raise rollmux_client.Interrupted("stop")
        return outcome

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """Evaluate as TRL does, in a separate turn if the job has none."""
        self._end_init()
        if self._training is not None and self._has_server:
            steps = self.args.steps_per_generation * self.num_iterations // self.args.gradient_accumulation_steps
            raise ValueError(f"evaluations with a vLLM server are where a training ends: eval_steps is a multiple of {steps}")
        turn, self._evaluates = self._evaluates, None
        if turn is None and self._training is None:
            turn = self._begin("rollout", extra=True)
        outcome = super().evaluate(*arguments, **options)
        if turn is not None:
            self._end(turn)
        return outcome

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if not self.model.training:  # an evaluation
            return super()._generate_and_score_completions(inputs)
        self._end_training()  # needed if generation comes in the middle of an optimizer step
        self._rollout = self._begin("rollout")
        outputs = super()._generate_and_score_completions(inputs)
        assert self._turn is not None
        self._report(self._turn, *_SAMPLED)
        self._end_rollout()
        return outputs

    def _generate(self, prompts: Any) -> Any:
        outputs = super()._generate(prompts)
        if self._has_server:
            self._end_rollout()
        return outputs

    def _end_rollout(self) -> None:
        """End the turn of rollout, if there is one, and begin that of training."""
        turn, self._rollout = self._rollout, None
        if turn is not None:
            self._end(turn)
            self._training = self._begin("training")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold a turn, the present one or a new one, so that models and optimizer are on the devices and can be used."""
        turn = None if self._turn is not None else self._begin("rollout", extra=True)
        try:
            yield
        finally:
            if turn is not None:
                self._end(turn)

    def save_model(self, *arguments: Any, **options: Any) -> None:
        """Save as TRL does, in a separate turn if the job has none."""
        with self.turn():
            super().save_model(*arguments, **options)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self.turn():
            super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]

    def _load_best_model(self) -> None:
        with self.turn():
            super()._load_best_model()

    def _find_buckets(self) -> None:
        """Find the buffers in which DistributedDataParallel reduces gradients, so that they leave the devices too."""
        if self._is_attached and isinstance(self.model_wrapped, DistributedDataParallel):
            try:
                self._buckets = GradientBuckets(self.model_wrapped)
            except RuntimeError as error:  # the user's hook, or this one from an earlier training
                _LOG.warning("gradient buckets of DistributedDataParallel stay on the device: %s", str(error).partition("\n")[0])

    def _end_init(self) -> None:
        """End the turn of init, and send a server the first weights."""
        turn, self._init = self._init, None
        if turn is None:
            return
        self._end(turn)
        if self._has_server:
            turn = self._begin("sync", iteration=self._job.iteration - 1)
            self._send_weights()
            self._end(turn)

    def _continue(self) -> None:
        """Tell the service at which iteration the training continues, and check that it ends at the same one as the job.

        Raises:
            Mismatch: It does not, or the service cannot follow.
            _Complete: The checkpoint has all iterations. Transformers would still train one more step.
        """
        batches = self.args.steps_per_generation * self.num_iterations
        iterations, left = (
            math.ceil(steps * self.args.gradient_accumulation_steps / batches)
            for steps in (self.state.max_steps, self.state.max_steps - self.state.global_step)
        )
        problem = ""
        try:
            self._job.check_total(iterations)
            self._job.continue_from(iterations - left)
        except rollmux_client.Mismatch as error:
            problem = str(error)
        if self._agreed(bool(problem)):
            raise rollmux_client.Mismatch(problem or 1)
        if self._is_attached and left <= 0:
            raise _Complete

    def _send_weights(self) -> None:
        self.vllm_generation.sync_weights()
        self._last_loaded_step = self.state.global_step

    @property
    def _has_server(self) -> bool:
        return bool(self.use_vllm) and self.args.vllm_mode == "server"

    @property
    def _generates_next(self) -> bool:
        return bool(self._step % (self.args.steps_per_generation * self.num_iterations) == 0)

    def _end_step(self, control: Any) -> None:
        """Handle the end of an optimizer step: stop, checkpoint, and end of a training's turn."""
        if self._agreed(self._job.stopping):
            control.should_save = control.should_training_stop = True
        if self._generates_next:
            if control.should_save and self._is_attached and not self.args.load_best_model_at_end:
                self._save_checkpoint(self.model, None)  # while the job still has its turn
                control.should_save = False
                self.callback_handler.on_save(self.args, self.state, control)
            self._end_training(syncs=control.should_evaluate or not control.should_training_stop, evaluates=control.should_evaluate)

    def _end_training(self, syncs: bool = True, evaluates: bool = False) -> None:
        """End the turn of training and its iteration, if there is one.

        Args:
            syncs: Whether a server needs the new weights.
            evaluates: Whether an evaluation comes next.
        """
        turn, self._training = self._training, None
        if turn is None:
            return
        self._report(turn, "entropy")
        self._end(turn)
        if self._has_server and syncs:
            turn = self._begin("sync")
            self._send_weights()
            if evaluates:
                self._evaluates = turn
            else:
                self._end(turn)
        self._job.iteration += 1

    def _begin(self, phase: str, extra: bool = False, iteration: int | None = None) -> rollmux_client.PhaseContext:
        turn = self._turn = self._job.phase(phase, iteration, extra)
        self._job.acquire(turn)
        self._wait_for_all()
        if self._offloader is not None and (phase != "rollout" or extra or not self._has_server):
            self._offloader.restore()
        return turn

    def _end(self, turn: rollmux_client.PhaseContext) -> None:
        if self._is_attached and self._offloader is None and not self.is_deepspeed_enabled:
            self._offloader = Offloader(self._tensors, lambda: self._buckets() if self._buckets is not None else ())
        if self._offloader is not None:
            self._offloader.offload()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        self._wait_for_all()
        rollmux_devices.report(self._job, turn)
        self._turn = None
        self._job.release(turn)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return the trainer's tensors by name."""
        judges = [one for one in self.reward_funcs if isinstance(one, torch.nn.Module)]
        models: dict[str, tuple[Any, Any]] = {f"reward.{number}": (judge, None) for number, judge in enumerate(judges)}
        models |= {"policy": (self.model, self.optimizer), "reference": (getattr(self, "ref_model", None), None)}
        every = {who: state_of(*its) for who, its in models.items() if its[0] is not None}
        return {f"{who}.{name}": tensor for who, tensors in every.items() for name, tensor in tensors.items()}

    def _report(self, turn: rollmux_client.PhaseContext, *names: str) -> None:
        """Report the last values of metrics that TRL has computed."""
        known = self._metrics["train"]
        turn.report(**{name: float(known[name][-1]) for name in names if known.get(name)})

    def _name_ranks(self) -> None:
        """Name the processes of all ranks on this machine to the service, since a launcher gives each a separate session."""
        if self._processes is None or not self._is_attached:
            return
        here = rollmux_processes.pid_space()
        ranks: list[Any] = [None] * torch.distributed.get_world_size(self._processes)
        torch.distributed.all_gather_object(ranks, (here, os.getpid()), self._processes)
        self._job.add_processes(pid for space, pid in ranks if space == here)

    def _wait_for_all(self) -> None:
        if self._processes is not None:
            torch.distributed.barrier(self._processes)

    def _agreed(self, flag: bool) -> bool:
        """Return the flag of the first process."""
        if self._processes is None:
            return flag
        value = torch.tensor([int(flag)])
        torch.distributed.broadcast(value, 0, self._processes)
        return bool(value.item())


class _Ends(TrainerCallback):
    """Tells the trainer when training begins, when a step ends and when training ends."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        self._trainer._find_buckets()  # noqa: SLF001
        self._trainer._end_init()  # noqa: SLF001
        self._trainer._continue()  # noqa: SLF001

    def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        self._trainer._end_step(control)  # noqa: SLF001 (one class with two bases would be copied by transformers)

    def on_train_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        self._trainer._end_training(syncs=False)  # noqa: SLF001
